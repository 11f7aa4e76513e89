// Training curves: a line for every method with its band, named at its end; those not in colour are thin and grey.

view("curves", {
  reaches: true,

  draw(plot) {
    const kind = plot.panel === 0 ? "average" : "worst";
    const title = `${plot.panel === 0 ? "average client" : servedName}, ${axisUnit}`;
    const here = data.curves.filter((curve) => curve.attack === state.attack);
    const named = here.filter((curve) => state.methods.includes(curve.method));
    const right = Math.min(Math.max(...named.map((curve) => textWidth(data.methods[curve.method])), 20) + 14, plot.host.clientWidth * 0.34);
    plot.begin(290, { left: 8 + Math.max(26, tickRoom(here, kind)), right, top: 26, bottom: 36 });
    plot.curves = [];
    if (!here.length) return;
    const every = here.flatMap((curve) => curve[kind]);
    const x = [Math.min(...here.map((c) => c.rounds[0])), Math.max(...here.map((c) => c.rounds[c.rounds.length - 1]))];
    if (x[0] === x[1]) x[1]++;
    const [bottom, top] = rangeOf(every.map((v) => v[0]));
    const y = [Math.max(0, Math.min(...every.map((v) => Math.max(v[1], bottom - (top - bottom) * 0.3)))), Math.min(most, Math.max(...every.map((v) => Math.min(v[2], top + (top - bottom) * 0.3))))];
    const reach = isShare ? Infinity : top + 2 * (top - bottom); // of a client whose error is without bound
    if (state.client !== null)
      for (const method of state.methods)
        for (const [, value] of traceOf(runOf(method), "figure", state.client) || []) {
          if (value > reach) continue;
          y[0] = Math.min(y[0], value);
          y[1] = Math.max(y[1], value);
        }
    if (y[1] - y[0] < judged.least) { y[0] = Math.max(0, y[0] - judged.least / 2); y[1] = Math.min(most, y[0] + judged.least); }
    plot.scales(x, y);
    plot.domain = { x, y };
    plot.axisX(x, "round");
    plot.axisY(y, title);
    const within = (value) => plot.y(clamp(value, y[0], y[1]));
    const ends = [];
    for (const curve of [...here].sort((a, b) => state.methods.includes(a.method) - state.methods.includes(b.method))) {
      const own = state.methods.includes(curve.method), c = `var(--${methodColour(curve.method)})`;
      const points = curve.rounds.map((round, i) => [plot.x(round), within(curve[kind][i][0])]);
      if (own && data.seeds.length > 1) {
        const upper = curve.rounds.map((round, i) => `${plot.x(round)} ${within(curve[kind][i][2])}`);
        const lower = curve.rounds.map((round, i) => `${plot.x(round)} ${within(curve[kind][i][1])}`).reverse();
        plot.add("path", { d: `M${[...upper, ...lower].join("L")}Z`, style: `fill:${c};opacity:.13` });
      }
      plot.add("path", { d: `M${points.map((p) => p.join(" ")).join("L")}`, style: `fill:none;stroke:${c};stroke-width:${own ? 2.2 : 1};stroke-linejoin:round` });
      if (points.length === 1) plot.add("circle", { cx: points[0][0], cy: points[0][1], r: 4, style: `fill:${c}` });
      plot.curves.push({ method: curve.method, points, values: curve[kind], rounds: curve.rounds });
      if (own) ends.push({ method: curve.method, y: points[points.length - 1][1], x: points[points.length - 1][0] });
    }
    endLabels(plot, ends, right - 10);
  },

  /** The followed client's own figure, dotted, under every method in colour. */
  follow(plot) {
    if (state.client === null || !plot.domain) return;
    for (const method of state.methods) {
      const trace = traceOf(runOf(method), "figure", state.client);
      if (!trace || !trace.length) continue;
      const { x, y } = plot.domain;
      const path = trace.filter(([round]) => round >= x[0] && round <= x[1]).map(([round, value]) => `${plot.x(round)} ${plot.y(clamp(value, y[0], y[1]))}`);
      if (path.length) plot.add("path", { d: `M${path.join("L")}`, style: `fill:none;stroke:var(--${methodColour(method)});stroke-width:2;stroke-dasharray:1 5;stroke-linecap:round` }, undefined, true);
    }
  },

  hit(plot, x, y) {
    let best = null, least = 14;
    for (const curve of plot.curves || []) curve.points.forEach((point, i) => {
      const distance = Math.hypot(point[0] - x, point[1] - y);
      if (distance < least) [best, least] = [{ curve, i }, distance];
    });
    if (!best) return null;
    const [mean, low, high] = best.curve.values[best.i];
    const band = data.seeds.length > 1 && low !== null ? ` (${bare(low)} to ${bare(high)})` : "";
    return { text: `${data.methods[best.curve.method]}\nround ${best.curve.rounds[best.i]}: ${figure(mean)}${band}` };
  },
});

/** The room that the numbers of an axis need. */
function tickRoom(curves, kind) {
  if (isShare || !curves.length) return 0;
  const [low, high] = rangeOf(curves.flatMap((curve) => curve[kind].map((value) => value[0]))), all = ticks(low, high, 4);
  return Math.max(...all.map((value) => textWidth(tickText(value, all)))) + 6;
}

/** Names at the ends of lines, moved apart so that none lies on another. */
function endLabels(plot, ends, width) {
  const space = 15, bottom = plot.margin.top + plot.inner.height;
  ends.sort((a, b) => a.y - b.y);
  const places = ends.map((end) => end.y);
  for (let turn = 0; turn < 60; turn++)
    for (let i = 1; i < places.length; i++) {
      const lack = space - (places[i] - places[i - 1]);
      if (lack > 0) { places[i - 1] -= lack / 2; places[i] += lack / 2; }
    }
  const over = Math.max(0, (places[places.length - 1] ?? 0) - bottom);
  ends.forEach((end, i) => {
    const y = places[i] - over;
    const c = `var(--${methodColour(end.method)})`;
    if (Math.abs(y - end.y) > 4) plot.add("path", { d: `M${end.x + 2} ${end.y}L${end.x + 8} ${y}`, style: `fill:none;stroke:${c};stroke-width:1` });
    plot.add("text", { x: end.x + 10, y: y + 4, class: "strong" }, fitted(data.methods[end.method], width));
  });
}
