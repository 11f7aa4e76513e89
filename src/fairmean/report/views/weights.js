// Who is given weight: a panel for each method in colour, a line for each client.

view("weights", {
  label: "Weight of every client over rounds",

  draw(plot) {
    const run = runOf(plot.panel), trace = run && run.weight_trace;
    plot.begin(210, { left: 46, right: 12, top: 10, bottom: 34 });
    plot.lines = [];
    if (!trace) {
      const why = run && !run.figure_trace ? "The weights of this draw are not in the page." : "This rule gives no client a weight of its own.";
      plot.add("text", { x: plot.margin.left, y: 40 }, fitted(why, plot.inner.width));
      return;
    }
    const width = data.traced ? data.traced.length : data.clients, rounds = trace.rounds;
    const x = [rounds[0], rounds[rounds.length - 1]];
    if (x[0] === x[1]) x[1]++;
    let high = 0, low = Infinity;
    for (let i = 0; i < rounds.length * width; i++) {
      const value = numbers[trace.at + i];
      if (value >= ABSENT) continue;
      high = Math.max(high, trace.low + value * trace.step);
      low = Math.min(low, trace.low + value * trace.step);
    }
    const y = low < 0 ? [low, Math.max(high, 0)] : low > high * 0.6 ? [low - (high - low || high || 1) * 0.15, high + (high - low || high || 1) * 0.15] : [0, high * 1.05 || 1];
    plot.scales(x, y);
    plot.domain = y;
    plot.axisX(x, "round", Math.max(2, Math.floor(plot.inner.width / 70)));
    plot.axisY(y, "", 3);
    const { context } = plot, [good, bad] = [colour("regular"), colour("poisoned")];
    const many = width > 60;
    for (const kind of [false, true]) for (let row = 0; row < width; row++) {
      const client = data.traced ? data.traced[row] : row;
      if (isPoisoned(run, client) !== kind) continue;
      const points = [];
      for (let i = 0; i < rounds.length; i++) {
        const value = numbers[trace.at + i * width + row];
        if (value < ABSENT) points.push([plot.x(rounds[i]), plot.y(trace.low + value * trace.step)]);
      }
      if (!points.length) continue;
      context.strokeStyle = context.fillStyle = kind ? bad : good;
      context.globalAlpha = many ? clamp(40 / width, 0.06, 0.6) * (kind ? 2 : 1) : 0.85;
      context.lineWidth = many ? 1 : 1.5;
      context.setLineDash(kind ? [5, 3] : []);
      context.beginPath();
      points.forEach(([px, py], i) => (i ? context.lineTo(px, py) : context.moveTo(px, py)));
      context.stroke();
      context.setLineDash([]);
      const [px, py] = points[points.length - 1];
      if (kind) context.stroke(new Path2D(cross(px, py, many ? 2 : 3.5)));
      else { context.beginPath(); context.arc(px, py, many ? 1.5 : 2.6, 0, 7); context.fill(); }
      plot.lines.push({ client, points });
    }
    context.globalAlpha = 1;
  },

  follow(plot) {
    const line = plot.lines.find((one) => one.client === state.client);
    if (!line) return;
    const d = `M${line.points.map((p) => p.join(" ")).join("L")}`;
    plot.add("path", { d, class: "ring-halo" }, undefined, true);
    plot.add("path", { d, class: "followed", style: isPoisoned(runOf(plot.panel), line.client) ? "stroke-dasharray:6 3" : "" }, undefined, true);
    plot.ring(...line.points[line.points.length - 1], 5);
  },

  hit(plot, x, y) {
    let best = null, least = 10;
    for (const line of plot.lines || []) line.points.forEach((point, i) => {
      const distance = Math.abs(point[0] - x) < 40 ? Math.hypot(point[0] - x, point[1] - y) : 99;
      if (distance < least) [best, least] = [{ line, i }, distance];
    });
    if (!best) return null;
    const { client } = best.line, run = runOf(plot.panel), value = traceOf(run, "weight", client)[best.i];
    return { client, text: `client ${clientName(client)}${isPoisoned(run, client) ? " (poisoned)" : ""}\nround ${value[0]}: weight ${few(value[1])}` };
  },
});
