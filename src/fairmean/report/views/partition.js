// What the clients hold: classes × clients in the order of the heat map, with the number of samples on top.

view("partition", {
  draw(plot) {
    const draw = data.partitions.draws[`${state.attack},${state.seed}`], C = data.partitions.classes;
    const row = clamp(260 / C, 12, 22), bars = 54;
    plot.begin(bars + 14 + C * row + 44, { left: 46, right: 6, top: bars + 14, bottom: 44 });
    plot.columns = undefined;
    const at = draw && (draw[state.labels] ?? draw.classes);
    if (at === undefined) { plot.add("text", { x: 46, y: 30 }, "The clients’ data of this draw are not in the page."); return; }
    const clients = order(), poisoned = crewNow(), regular = clients.filter((client) => !poisoned.has(client)).length;
    plot.columns = columnsOf(plot, clients.length, regular);
    plot.at = at;
    plot.row = row;
    const sizes = clients.map((client) => sizeOf(at, client));
    const most = Math.max(...sizes, 1), [r, g, b] = colour("tint").split(",").map(Number);
    const paper = colour("paper"), ground = [1, 3, 5].map((k) => parseInt(paper.slice(k, k + 2), 16));
    paintGrid(plot, clients, C, row, (c, client) => {
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
      const height = (sizes[i] / most) * bars;
      context.fillRect(plot.columns.start(i), bars + 8 - height, wide, height);
    });
    context.globalAlpha = 1;
    plot.add("text", { x: 38, y: 14, "text-anchor": "end" }, most.toLocaleString("en"));
    plot.add("text", { x: 38, y: bars + 8, "text-anchor": "end" }, "0");
    for (let c = 0; c < C; c++) if (row >= 12 || c % 2 === 0) plot.add("text", { x: 38, y: plot.margin.top + c * row + row / 2 + 4, "text-anchor": "end" }, String(c));
    columnLabels(plot, clients, regular, namedColumns(plot.inner.width, clients));
  },

  follow(plot) { if (plot.columns) frameColumn(plot, data.partitions.classes * plot.row); },

  hit(plot, x, y) {
    if (!plot.columns || y > plot.height - plot.margin.bottom) return null;
    const client = clientAt(plot, x), c = Math.floor((y - plot.margin.top) / plot.row);
    if (client === undefined || x < plot.margin.left) return null;
    const size = sizeOf(plot.at, client), who = `client ${clientName(client)}${crewNow().has(client) ? " (poisoned)" : ""}`;
    if (c < 0 || c >= data.partitions.classes) return { client, text: `${who}\n${size.toLocaleString("en")} training samples` };
    const count = numbers[plot.at + client * data.partitions.classes + c];
    return { client, text: `${who}\n${count.toLocaleString("en")} of ${size.toLocaleString("en")} samples have label ${c}` };
  },
});

function sizeOf(at, client) {
  const C = data.partitions.classes;
  let sum = 0;
  for (let c = 0; c < C; c++) { const value = numbers[at + client * C + c]; if (value < ABSENT) sum += value; }
  return sum;
}
