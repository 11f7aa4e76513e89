// Average against worst: a dot for every method, small dots for its draws, crossed lines for the intervals.

view("tradeoff", {
  reaches: true,

  draw(plot) {
    const cells = data.methods.map((_, method) => ({ method, cell: cellOf(method) })).filter(({ cell }) => cell && cell.estimates.average.mean !== null);
    plot.begin(clamp(plot.host.clientWidth * 0.5, 300, 460), { left: isShare ? 40 : Math.max(40, ...cells.map(({ cell }) => textWidth(bare(cell.estimates[data.served].mean)) + 14)), right: 16, top: 26, bottom: 36 });
    const every = cells.map(({ method, cell }) => ({
      method,
      x: cell.estimates.average.mean, dx: cell.estimates.average.half || 0,
      y: cell.estimates[data.served].mean, dy: cell.estimates[data.served].half || 0,
      points: data.served === "worst" && state.methods.includes(method) ? cell.points.filter(([a, b]) => a !== null && b !== null) : [],
    }));
    const within = ["x", "y"].map((key) => rangeOf(every.map((dot) => dot[key]))[1]);
    const dots = every.filter((dot) => dot.x <= within[0] && dot.y <= within[1]), outside = every.filter((dot) => !dots.includes(dot));
    const reach = (values, spans) => {
      // an interval that is much wider than all dots lie apart runs out of the picture instead of squeezing it
      const low = Math.min(...values), high = Math.max(...values), room = Math.max(high - low, judged.least) * 0.6;
      const far = [Math.min(...values.map((v, i) => v - Math.min(spans[i], room))), Math.max(...values.map((v, i) => v + Math.min(spans[i], room)))];
      const pad = Math.max((far[1] - far[0]) * 0.06, judged.least / 8);
      if (far[1] - far[0] < judged.least) far[1] = far[0] + judged.least;
      return [Math.max(0, far[0] - pad), Math.min(most, far[1] + pad)];
    };
    if (!dots.length) { plot.add("text", { x: 40, y: 60 }, "No run under this attack has come to its end."); plot.dots = []; return; }
    const everyX = dots.flatMap((dot) => [dot.x, ...dot.points.map((p) => p[0])]), everyY = dots.flatMap((dot) => [dot.y, ...dot.points.map((p) => p[1])]);
    const spanOf = (key) => dots.flatMap((dot) => [dot[key], ...dot.points.map(() => 0)]);
    const x = reach(everyX, spanOf("dx")), y = reach(everyY, spanOf("dy"));
    const some = judged.least / 4;
    for (const [a, b] of followedIn(dots)) {
      [x[0], x[1]] = [Math.min(x[0], a - some), Math.max(x[1], a + some)];
      [y[0], y[1]] = [Math.max(0, Math.min(y[0], b - some)), Math.min(most, Math.max(y[1], b + 2 * some))];
    }
    plot.scales(x, y);
    plot.axisX(x, `average client, ${axisUnit}`);
    plot.axisY(y, `${servedName}, ${axisUnit}`);
    const { left, top } = plot.margin, right = left + plot.inner.width, bottom = top + plot.inner.height;
    if (judged.higher) plot.add("text", { x: plot.width - plot.margin.right, y: 12, "text-anchor": "end" }, "better for both ↗");
    else plot.add("text", { x: left, y: bottom + 31 }, "↙ better for both");
    if (outside.length) plot.add("text", { x: right, y: 12, "text-anchor": "end" }, fitted(`far outside: ${outside.map((dot) => data.methods[dot.method]).join(", ")}`, plot.inner.width * 0.6));
    const boxes = [];
    for (const dot of dots) {
      const c = `var(--${methodColour(dot.method)})`, cx = plot.x(dot.x), cy = plot.y(dot.y);
      for (const [a, b] of dot.points) plot.add("circle", { cx: plot.x(a), cy: plot.y(b), r: 2.5, style: `fill:${c};opacity:.35` });
      if (dot.dx && state.methods.includes(dot.method)) {
        plot.add("line", { x1: clamp(plot.x(dot.x - dot.dx), left, right), x2: clamp(plot.x(dot.x + dot.dx), left, right), y1: cy, y2: cy, style: `stroke:${c};stroke-width:1.5;opacity:.7` });
        plot.add("line", { y1: clamp(plot.y(dot.y - dot.dy), top, bottom), y2: clamp(plot.y(dot.y + dot.dy), top, bottom), x1: cx, x2: cx, style: `stroke:${c};stroke-width:1.5;opacity:.7` });
      }
    }
    const ranked = [...dots].sort((a, b) => state.methods.includes(b.method) - state.methods.includes(a.method));
    for (const dot of [...ranked].reverse()) {
      plot.add("circle", { cx: plot.x(dot.x), cy: plot.y(dot.y), r: state.methods.includes(dot.method) ? 6.5 : 4.5, style: `fill:var(--${methodColour(dot.method)});stroke:var(--paper);stroke-width:1.5` });
      boxes.push([plot.x(dot.x) - 7, plot.y(dot.y) - 7, plot.x(dot.x) + 7, plot.y(dot.y) + 7]);
    }
    for (const dot of ranked) label(plot, dot, boxes);
    plot.dots = dots;
  },

  /** The followed client in this draw: the method's average of the draw, and the client's own figure. */
  follow(plot) {
    for (const [average, value, method] of followedIn(plot.dots)) {
      const cx = plot.x(average), cy = plot.y(value);
      plot.add("path", { d: `M${cx} ${cy - 6}L${cx + 6} ${cy}L${cx} ${cy + 6}L${cx - 6} ${cy}Z`, style: `fill:var(--${methodColour(method)})`, class: "followed" }, undefined, true);
    }
  },

  hit(plot, x, y) {
    let best = null, least = 16;
    for (const dot of plot.dots || []) {
      const distance = Math.hypot(plot.x(dot.x) - x, plot.y(dot.y) - y);
      if (distance < least) [best, least] = [dot, distance];
    }
    if (!best) return null;
    const said = (value, half) => `${bare(value)}${half ? ` ± ${bare(half)}` : ""}${isShare ? " %" : ""}`;
    return { text: `${data.methods[best.method]}\naverage ${said(best.x, best.dx)}\n${data.served === "worst" ? "worst" : "worst tenth"} ${said(best.y, best.dy)}` };
  },
});

/** The client that is followed, for every method in colour: [average of the draw, the client's figure, method]. */
function followedIn(dots) {
  if (state.client === null || !dots) return [];
  const drawn = data.seeds.indexOf(state.seed);
  return dots
    .filter((dot) => state.methods.includes(dot.method))
    .map((dot) => [cellOf(dot.method).points[drawn]?.[0], figureOf(runOf(dot.method), state.client), dot.method])
    .filter(([average, value]) => average != null && value >= 0);
}

/** The name of a dot where there is room for it: right, left, above, below; else it is left to the tip. */
function label(plot, dot, boxes) {
  const name = fitted(data.methods[dot.method], 190), width = textWidth(name), cx = plot.x(dot.x), cy = plot.y(dot.y);
  const tries = [[cx + 11, cy - 6], [cx + 11, cy + 10], [cx - 11 - width, cy - 6], [cx - 11 - width, cy + 10], [cx - width / 2, cy - 12], [cx - width / 2, cy + 20], [cx + 12, cy - 18], [cx + 12, cy + 24], [cx - 12 - width, cy - 18], [cx - 12 - width, cy + 24]];
  for (const [x, y] of tries) {
    const box = [x - 2, y - 11, x + width + 2, y + 4];
    if (box[0] < plot.margin.left + 2 || box[2] > plot.width || box[1] < 16 || box[3] > plot.margin.top + plot.inner.height) continue;
    if (boxes.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
    boxes.push(box);
    plot.add("text", { x, y, class: "strong halo" }, name);
    return;
  }
}
