// How the clients are spread: a strip of points for each method; crosses are poisoned clients.

view("spread", {
  draw(plot) {
    const runs = shownRuns(), methods = data.methods.map((_, m) => m).filter((m) => runs[m] !== undefined);
    const left = rowMargin(data.methods, plot.host), many = data.clients > 60;
    const row = clamp(520 / Math.max(1, methods.length), 17, 46);
    plot.begin(6 + methods.length * row + 40, { left, right: 14, top: 6, bottom: 40 });
    const all = methods.flatMap((m) => Array.from({ length: data.clients }, (_, client) => figureOf(runs[m], client)));
    const [low, high] = rangeOf(all);
    const pad = Math.max(judged.least / 2, (high - low) * 0.03), x = [Math.max(0, low - pad), Math.min(most, high + pad)];
    plot.scales(x, [0, 1]);
    const beyond = all.some((value) => value > high) ? "; points at the right edge lie beyond it" : "";
    plot.axisX(x, `${judged.title} on ${data.labels.replace(/^the /, "")}${isShare ? ", %" : beyond}`);
    const { context } = plot, size = many ? (data.clients > 2000 ? 1.2 : 1.7) : 3.6;
    const [good, bad] = [colour("regular"), colour("poisoned")];
    plot.points = [];
    methods.forEach((m, r) => {
      const top = plot.margin.top + r * row, run = runs[m];
      plot.add("line", { x1: left, x2: plot.width - plot.margin.right, y1: top + row, y2: top + row, class: "base" });
      plot.add("text", { x: left - 10, y: top + row / 2 + 4, "text-anchor": "end", class: "strong" }, fitted(data.methods[m], left - 14));
      let sum = 0, count = 0;
      for (let client = 0; client < data.clients; client++) {
        const value = figureOf(run, client);
        if (!(value >= 0)) continue;
        const poisoned = isPoisoned(run, client), cx = plot.x(Math.min(value, x[1])), cy = top + row / 2 + jitter(client, m) * Math.min(row - 10, 26);
        plot.points.push([cx, cy, client, m, value]);
        context.globalAlpha = many ? clamp(300 / data.clients, 0.18, 0.7) : 0.85;
        if (poisoned) {
          context.globalAlpha = many ? clamp(500 / data.clients, 0.25, 0.7) : 1;
          context.strokeStyle = bad;
          context.lineWidth = many ? 1 : 1.8;
          context.stroke(new Path2D(cross(cx, cy, many ? size * 1.3 : 3.4)));
        } else {
          sum += value;
          count++;
          context.fillStyle = good;
          context.beginPath();
          context.arc(cx, cy, size, 0, 7);
          context.fill();
        }
      }
      context.globalAlpha = 1;
      if (count && sum / count <= x[1]) plot.add("line", { x1: plot.x(sum / count), x2: plot.x(sum / count), y1: top + 3, y2: top + row - 3, class: "mean" });
    });
  },

  follow(plot) {
    if (state.client === null) return;
    for (const [x, y, client] of plot.points) if (client === state.client) plot.ring(x, y, data.clients > 60 ? 5 : 7);
  },

  hit(plot, x, y) {
    let best = null, least = 12;
    for (const point of plot.points || []) {
      const distance = Math.hypot(point[0] - x, point[1] - y);
      if (distance < least) [best, least] = [point, distance];
    }
    if (!best) return null;
    const [, , client, m, value] = best;
    return { client, text: `client ${clientName(client)}${isPoisoned(runOf(m), client) ? " (poisoned)" : ""}\n${data.methods[m]}: ${figure(value)}` };
  },
});

/** Between −½ and ½, the same for a client at every drawing. */
function jitter(client, method) {
  let bits = (client * 2654435761 + method * 97) >>> 0;
  bits = ((bits ^ (bits >>> 15)) * 2246822519) >>> 0;
  return ((bits ^ (bits >>> 13)) >>> 0) / 4294967296 - 0.5;
}
