// Every client × every method: one pixel for each in a small picture, which is then drawn large.

view("clients", {
  slider: true,

  draw(plot) {
    const clients = order(), runs = shownRuns(), methods = data.methods.map((_, m) => m).filter((m) => runs[m] !== undefined);
    const poisoned = crewNow(), regular = clients.filter((client) => !poisoned.has(client)).length;
    const left = rowMargin(data.methods, plot.host), row = clamp(420 / Math.max(1, methods.length), 15, 34);
    const named = namedColumns(plot.host.clientWidth - left - 20, clients);
    plot.begin(40 + methods.length * row + 44, { left, right: 6, top: 40, bottom: 44 });
    plot.columns = columnsOf(plot, clients.length, regular);
    plot.methods = methods;
    plot.row = row;
    let low = Infinity, high = -Infinity;
    for (const m of methods) for (const client of clients) {
      const value = accuracyOf(runs[m], client);
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) [low, high] = [0, 100];
    low = Math.floor(low / 10) * 10;
    high = Math.max(Math.ceil(high / 10) * 10, low + 10);
    const nothing = colour("nothing");
    const fill = (m, client) => {
      const value = accuracyOf(runs[m], client);
      return value === undefined ? null : Number.isNaN(value) ? nothing : viridis((value - low) / (high - low));
    };
    paintGrid(plot, clients, methods.length, row, (r, client) => fill(methods[r], client));
    methods.forEach((m, r) => plot.add("text", { x: left - 10, y: plot.margin.top + r * row + row / 2 + 4, "text-anchor": "end", class: "strong" }, fitted(data.methods[m], left - 14)));
    if (named && plot.columns.width >= 34 && row >= 20)
      methods.forEach((m, r) => clients.forEach((client, i) => {
        const value = accuracyOf(runs[m], client);
        if (value === undefined) return;
        const light = Number.isNaN(value) || (value - low) / (high - low) > 0.62;
        plot.add("text", { x: plot.columns.middle(i), y: plot.margin.top + r * row + row / 2 + 4, "text-anchor": "middle", style: Number.isNaN(value) ? "" : `fill:${light ? "#16181c" : "#ffffff"}` }, Number.isNaN(value) ? "–" : value.toFixed(0));
      }));
    columnLabels(plot, clients, regular, named);
    legend(plot, low, high, clients.some((client) => methods.some((m) => Number.isNaN(accuracyOf(runs[m], client)))));
  },

  follow(plot) { frameColumn(plot, plot.methods.length * plot.row); },

  hit(plot, x, y) {
    const client = clientAt(plot, x), r = Math.floor((y - plot.margin.top) / plot.row);
    if (client === undefined || r < 0 || r >= plot.methods.length) return null;
    const run = runOf(plot.methods[r]), value = accuracyOf(run, client);
    const words = value === undefined ? "not in this run" : percent(value);
    return { client, text: `client ${clientName(client)}${isPoisoned(run, client) ? " (poisoned)" : ""}\n${data.methods[plot.methods[r]]}: ${words}` };
  },
});

/** Whether there is room to name every column. */
function namedColumns(width, clients) {
  const widest = Math.max(...clients.slice(0, 200).map((client) => textWidth(clientName(client))), 8);
  return clients.length <= 120 && width / clients.length > widest + 6;
}

/** Where columns are: regular clients, a gap, poisoned clients. */
function columnsOf(plot, count, regular) {
  const gap = regular > 0 && regular < count ? 12 : 0;
  const width = (plot.inner.width - gap) / Math.max(1, count);
  const start = (i) => plot.margin.left + i * width + (i >= regular ? gap : 0);
  return { width, gap, regular, start, middle: (i) => start(i) + width / 2 };
}

/** Fields of a grid: drawn one by one while they are wide, else pixel by pixel and scaled. */
function paintGrid(plot, clients, rows, height, fill) {
  const { context, columns } = plot, top = plot.margin.top;
  const css = (c) => (Array.isArray(c) ? `rgb(${c})` : c);
  if (columns.width >= 3) {
    const space = columns.width > 14 ? 1 : 0;
    for (let r = 0; r < rows; r++) clients.forEach((client, i) => {
      const c = fill(r, client);
      if (c === null) return;
      context.fillStyle = css(c);
      context.fillRect(columns.start(i), top + r * height, columns.width - space + (space ? 0 : 0.6), height - 1);
    });
    return;
  }
  const small = document.createElement("canvas");
  small.width = clients.length;
  small.height = rows;
  const image = small.getContext("2d").createImageData(clients.length, rows);
  const parsed = new Map();
  const channels = (c) => {
    if (Array.isArray(c)) return c;
    if (!parsed.has(c)) parsed.set(c, [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)));
    return parsed.get(c);
  };
  for (let r = 0; r < rows; r++) for (let i = 0; i < clients.length; i++) {
    const c = fill(r, clients[i]);
    if (c !== null) image.data.set([...channels(c), 255], 4 * (r * clients.length + i));
  }
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = columns.width < 1;
  for (let r = 0; r < rows; r++)
    for (const [from, to] of [[0, columns.regular], [columns.regular, clients.length]])
      if (to > from) context.drawImage(small, from, r, to - from, 1, columns.start(from), top + r * height, (to - from) * columns.width, height - 1);
}

/** Names under the columns, crosses under poisoned ones; of many clients, only where groups begin and end. */
function columnLabels(plot, clients, regular, named) {
  const y = plot.height - plot.margin.bottom + 15;
  if (named) clients.forEach((client, i) => {
    plot.add("text", { x: plot.columns.middle(i), y, "text-anchor": "middle" }, clientName(client));
    if (i >= regular) plot.add("path", { d: cross(plot.columns.middle(i), y + 11, 3.5), class: "cross" });
  });
  const words = y + (named ? 28 : 0) - (named && regular === clients.length ? 12 : 0);
  const start = plot.columns.start(0);
  const said = `${named ? "" : `${regular.toLocaleString("en")} `}regular, worst to best served →`;
  plot.add("text", { x: start, y: words }, regular ? said : "");
  if (regular < clients.length) {
    const from = plot.columns.start(regular), wide = plot.width - plot.margin.right - from;
    const text = named ? "poisoned" : "× poisoned", room = textWidth(text) < wide;
    if (room || textWidth(said) + textWidth(text) + 10 < plot.width - plot.margin.right - start)
      plot.add("text", { x: room ? from : plot.width - plot.margin.right, y: words, "text-anchor": room ? "start" : "end", style: "fill:var(--poisoned)" }, text);
  }
}

const cross = (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;

/** A bar of colours with its numbers, above the heat map. */
function legend(plot, low, high, missing) {
  const width = Math.min(180, plot.inner.width * 0.5), x = plot.margin.left, y = 6;
  for (let i = 0; i < width; i++) {
    plot.context.fillStyle = `rgb(${viridis(i / width)})`;
    plot.context.fillRect(x + i, y, 1.5, 8);
  }
  plot.add("text", { x, y: y + 22 }, `${low} %`);
  plot.add("text", { x: x + width, y: y + 22, "text-anchor": "end" }, `${high} %`);
  if (missing) {
    plot.context.fillStyle = colour("nothing");
    plot.context.fillRect(x + width + 22, y, 12, 8);
    plot.add("text", { x: x + width + 40, y: y + 8 }, "no test data");
  }
}

/** A frame around the column of the client that is followed. */
function frameColumn(plot, height) {
  const i = state.client === null ? -1 : order().indexOf(state.client);
  if (i < 0) return;
  const width = Math.max(plot.columns.width - (plot.columns.width > 14 ? 1 : 0), 3), x = plot.columns.middle(i) - width / 2 - (plot.columns.width > 14 ? 0.5 : 0);
  for (const name of ["ring-halo", "ring"]) plot.add("rect", { x: x - 1, y: plot.margin.top - 2, width: width + 2, height: height + 3, rx: 2, class: name }, undefined, true);
}

function clientAt(plot, x) {
  const { start, width, regular, gap } = plot.columns, from = x - start(0);
  let i = Math.floor(from / width);
  if (i >= regular) i = Math.floor((from - gap) / width);
  if (i < regular && from > regular * width) return undefined;
  return i >= 0 ? order()[i] : undefined;
}
