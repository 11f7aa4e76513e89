// Every client × every method: one pixel for each in a small picture, which is then drawn large.

view("clients", {
  slider: true,

  draw(plot) {
    const clients = order(), runs = shownRuns(), methods = data.methods.map((_, m) => m).filter((m) => runs[m] !== undefined);
    const poisoned = crewNow(), regular = clients.filter((client) => !poisoned.has(client)).length;
    const left = rowMargin(data.methods, plot.host), row = clamp(420 / Math.max(1, methods.length), 15, 34);
    const room = labelRoom(plot.host.clientWidth - left - 20, clients);
    plot.begin(40 + methods.length * row + room.height, { left, right: 6, top: 40, bottom: room.height });
    plot.columns = columnsOf(plot, clients.length, regular);
    plot.methods = methods;
    plot.row = row;
    const all = methods.flatMap((m) => clients.map((client) => figureOf(runs[m], client)));
    let [low, high] = rangeOf(all);
    const step = isShare ? 10 : roundStep((high - low) / 4 || judged.least || 1);
    low = Math.max(0, Math.floor(low / step + 1e-9) * step);
    high = Math.max(Math.ceil(high / step - 1e-9) * step, low + step);
    const beyond = all.some((value) => value > high);
    const nothing = colour("nothing"), [worst, best] = judged.higher ? [low, high] : [high, low];
    const share = (value) => (value - worst) / (best - worst); // 1 is good, and bright
    const fill = (m, client) => {
      const value = figureOf(runs[m], client);
      return value === undefined ? null : Number.isNaN(value) ? nothing : viridis(share(value));
    };
    paintGrid(plot, clients, methods.length, row, (r, client) => fill(methods[r], client));
    methods.forEach((m, r) => plot.add("text", { x: left - 10, y: plot.margin.top + r * row + row / 2 + 4, "text-anchor": "end", class: "strong" }, fitted(data.methods[m], left - 14)));
    const widest = room.named ? Math.max(28, ...all.filter(Number.isFinite).map((value) => textWidth(short(value)))) : 0;
    if (room.named && plot.columns.width >= widest + 6 && row >= 20)
      methods.forEach((m, r) => clients.forEach((client, i) => {
        const value = figureOf(runs[m], client);
        if (value === undefined) return;
        const light = Number.isNaN(value) || share(value) > 0.62;
        plot.add("text", { x: plot.columns.middle(i), y: plot.margin.top + r * row + row / 2 + 4, "text-anchor": "middle", style: Number.isNaN(value) ? "" : `fill:${light ? "#16181c" : "#ffffff"}` }, Number.isNaN(value) ? "–" : short(value));
      }));
    columnLabels(plot, clients, regular, room);
    legend(plot, worst, best, step, beyond, all.some((value) => Number.isNaN(value)));
  },

  follow(plot) { frameColumn(plot, plot.methods.length * plot.row); },

  hit(plot, x, y) {
    const client = clientAt(plot, x), r = Math.floor((y - plot.margin.top) / plot.row);
    if (client === undefined || r < 0 || r >= plot.methods.length) return null;
    const run = runOf(plot.methods[r]), value = figureOf(run, client), span = intervalOf(run, client);
    const words = value === undefined ? "not in this run" : figure(value) + (span ? ` (${bare(span[0])} to ${bare(span[1])})` : "");
    return { client, text: `client ${clientName(client)}${isPoisoned(run, client) ? " (poisoned)" : ""}\n${data.methods[plot.methods[r]]}: ${words}` };
  },
});

const LONGEST = 130; // of a slanted name, in pixels
const SLANT = 40; // degrees

/** Whether there is room to name every column, if need be at a slant, and how much height that takes. */
function labelRoom(width, clients) {
  const widest = Math.max(...clients.slice(0, 200).map((client) => textWidth(clientName(client))), 8), each = width / clients.length;
  if (clients.length > 120) return { named: false, slanted: false, height: 44 };
  if (each > widest + 6) return { named: true, slanted: false, height: 44 };
  if (!data.names || each < 17) return { named: false, slanted: false, height: 44 };
  return { named: true, slanted: true, height: 44 + Math.ceil((Math.min(widest, LONGEST) + 14) * Math.sin((SLANT * Math.PI) / 180)) };
}

/** The round number that is next above. */
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
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
function columnLabels(plot, clients, regular, { named, slanted }) {
  const y = plot.height - plot.margin.bottom + 15;
  if (slanted) clients.forEach((client, i) => {
    const x = plot.columns.middle(i) + 4, bad = i >= regular;
    if (bad) plot.add("path", { d: cross(x - 5, y - 5, 3.5), class: "cross" });
    const at = bad ? [x - 12, y + 3] : [x, y - 5];
    plot.add("text", { x: at[0], y: at[1], "text-anchor": "end", transform: `rotate(${-SLANT} ${at[0]} ${at[1]})` }, shortened(clientName(client), LONGEST));
  });
  else if (named) clients.forEach((client, i) => {
    plot.add("text", { x: plot.columns.middle(i), y, "text-anchor": "middle" }, clientName(client));
    if (i >= regular) plot.add("path", { d: cross(plot.columns.middle(i), y + 11, 3.5), class: "cross" });
  });
  const words = slanted ? plot.height - 6 : y + (named ? 28 : 0) - (named && regular === clients.length ? 12 : 0);
  const start = plot.columns.start(0);
  const kind = regular < clients.length ? "regular" : "clients";
  const who = named ? (regular < clients.length ? "regular, " : "") : `${regular.toLocaleString("en")} ${kind}, `;
  const said = `${who}worst to best served →`;
  plot.add("text", { x: start, y: words }, regular ? said : "");
  if (regular < clients.length) {
    const from = plot.columns.start(regular), wide = plot.width - plot.margin.right - from;
    const text = named ? "poisoned" : "× poisoned", room = textWidth(text) < wide;
    if (room || textWidth(said) + textWidth(text) + 10 < plot.width - plot.margin.right - start)
      plot.add("text", { x: room ? from : plot.width - plot.margin.right, y: words, "text-anchor": room ? "start" : "end", style: "fill:var(--poisoned)" }, text);
  }
}

const cross = (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;

/** A bar of colours with its numbers, above the heat map: from the worst to the best. */
function legend(plot, worst, best, step, beyond, missing) {
  const width = Math.min(180, plot.inner.width * 0.5), x = plot.margin.left, y = 6;
  for (let i = 0; i < width; i++) {
    plot.context.fillStyle = `rgb(${viridis(i / width)})`;
    plot.context.fillRect(x + i, y, 1.5, 8);
  }
  const unit = isShare ? " %" : "", said = (value) => tickText(value, [0, step]) + unit;
  plot.add("text", { x, y: y + 22 }, said(worst) + (beyond ? " or more" : ""));
  plot.add("text", { x: x + width, y: y + 22, "text-anchor": "end" }, said(best));
  if (!isShare) plot.add("text", { x: x + width + 8, y: y + 22 }, judged.title);
  if (missing) {
    plot.context.fillStyle = colour("nothing");
    plot.context.fillRect(x + width + 22, y, 12, 8);
    plot.add("text", { x: x + width + 40, y: y + 8 }, "no test data");
  }
}

/** A frame around the column of the client that is followed. */
function frameColumn(plot, height, top = plot.margin.top) {
  const i = state.client === null ? -1 : order().indexOf(state.client);
  if (i < 0) return;
  const width = Math.max(plot.columns.width - (plot.columns.width > 14 ? 1 : 0), 3), x = plot.columns.middle(i) - width / 2 - (plot.columns.width > 14 ? 0.5 : 0);
  for (const name of ["ring-halo", "ring"]) plot.add("rect", { x: x - 1, y: top - 2, width: width + 2, height: height + 3, rx: 2, class: name }, undefined, true);
}

function clientAt(plot, x) {
  const { start, width, regular, gap } = plot.columns, from = x - start(0);
  let i = Math.floor(from / width);
  if (i >= regular) i = Math.floor((from - gap) / width);
  if (i < regular && from > regular * width) return undefined;
  return i >= 0 ? order()[i] : undefined;
}
