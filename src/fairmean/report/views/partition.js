// What the clients hold: classes × clients in the order of the heat map, with the number of samples on top.

view("partition", {
  draw(plot) {
    const draw = data.partitions.draws[`${state.attack},${state.seed}`], C = data.partitions.classes, rows = rowsOf();
    const row = clamp(260 / C, 12, 22), bars = rows ? 54 : 110;
    const left = data.partitions.names ? clamp(rowMargin(data.partitions.names, plot.host), 46, 160) : 46;
    const clients = order(), room = labelRoom(plot.host.clientWidth - left - 6, clients);
    plot.begin(bars + 14 + rows * row + room.height, { left, right: 6, top: bars + 14, bottom: room.height });
    plot.columns = undefined;
    const at = draw && (draw[state.labels] ?? draw.classes);
    if (at === undefined) { plot.add("text", { x: left, y: 30 }, "The clients’ data of this draw are not in the page."); return; }
    const poisoned = crewNow(), regular = clients.filter((client) => !poisoned.has(client)).length;
    plot.columns = columnsOf(plot, clients.length, regular);
    plot.at = at;
    plot.row = row;
    const sizes = clients.map((client) => sizeOf(at, client));
    const largest = Math.max(...sizes, 1), [r, g, b] = colour("tint").split(",").map(Number);
    const paper = colour("paper"), ground = [1, 3, 5].map((k) => parseInt(paper.slice(k, k + 2), 16));
    paintGrid(plot, clients, rows, row, (c, client) => {
      const value = numbers[at + client * C + c];
      if (value >= ABSENT) return null;
      const share = Math.sqrt(value / Math.max(1, sizeOf(at, client))), mix = 0.05 + 0.95 * share;
      return [r, g, b].map((v, k) => Math.round(ground[k] + mix * (v - ground[k])));
    });
    const { context } = plot, [good, bad] = [colour("regular"), colour("poisoned")];
    const wide = plot.columns.width > 14 ? plot.columns.width - 1 : Math.max(plot.columns.width, 0.6);
    clients.forEach((client, i) => {
      context.fillStyle = i < regular ? good : bad;
      context.globalAlpha = 0.75;
      const height = (sizes[i] / largest) * bars;
      context.fillRect(plot.columns.start(i), bars + 8 - height, wide, height);
    });
    context.globalAlpha = 1;
    plot.add("text", { x: left - 8, y: 14, "text-anchor": "end" }, largest.toLocaleString("en"));
    plot.add("text", { x: left - 8, y: bars + 8, "text-anchor": "end" }, "0");
    for (let c = 0; c < rows; c++) if (row >= 12 || c % 2 === 0) plot.add("text", { x: left - 8, y: plot.margin.top + c * row + row / 2 + 4, "text-anchor": "end" }, fitted(className(c), left - 10));
    columnLabels(plot, clients, regular, room);
  },

  follow(plot) { if (plot.columns) rowsOf() ? frameColumn(plot, rowsOf() * plot.row) : frameColumn(plot, plot.margin.top - 6, 0); },

  hit(plot, x, y) {
    if (!plot.columns || y > plot.height - plot.margin.bottom) return null;
    const client = clientAt(plot, x), c = Math.floor((y - plot.margin.top) / plot.row);
    if (client === undefined || x < plot.margin.left) return null;
    const size = sizeOf(plot.at, client), who = `client ${clientName(client)}${crewNow().has(client) ? " (poisoned)" : ""}`;
    if (c < 0 || c >= rowsOf()) return { client, text: `${who}\n${size.toLocaleString("en")} training samples` };
    const count = numbers[plot.at + client * data.partitions.classes + c];
    return { client, text: `${who}\n${count.toLocaleString("en")} of ${size.toLocaleString("en")} samples have label ${className(c)}` };
  },
});

/** How many classes are drawn: none where targets are no classes. */
const rowsOf = () => (data.partitions.plain ? 0 : data.partitions.classes);
const className = (c) => (data.partitions.names ? data.partitions.names[c] : String(c));

function sizeOf(at, client) {
  const C = data.partitions.classes;
  let sum = 0;
  for (let c = 0; c < C; c++) { const value = numbers[at + client * C + c]; if (value < ABSENT) sum += value; }
  return sum;
}
