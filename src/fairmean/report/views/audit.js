// What an audit says: priority (how unsure the others' models are) against held-out excess, a dot for every client.

const VERDICTS = ["nothing unusual", "contradicted", "served badly", "too little data"];

/** The audits of what is shown now: those of runs under this attack and in this draw. */
const auditsNow = () => data.runs.filter((run) => run.audit && run.attack === state.attack && run.seed === state.seed);

view("audit", {
  draw(plot) {
    const runs = auditsNow();
    plot.points = [];
    plot.begin(clamp(plot.host.clientWidth * 0.42, 260, 400), { left: 46, right: 16, top: 26, bottom: 36 });
    if (!runs.length) { plot.add("text", { x: 46, y: 60 }, "No run that is shown has been audited."); return; }
    const dots = [];
    for (const run of runs)
      for (let client = 0; client < data.clients; client++) {
        const [x, y, verdict] = [0, 1, 2].map((i) => unpacked(run.audit.rows[i], client));
        if (Number.isFinite(x) && Number.isFinite(y)) dots.push({ x, y, verdict: Math.round(verdict), client, run });
      }
    const limit = Math.max(...runs.map((run) => run.audit.limit));
    const span = (values) => {
      const low = Math.min(0, ...values), high = Math.max(...values), pad = (high - low || 1) * 0.06;
      return [low - (low < 0 ? pad : 0), high + pad];
    };
    const x = span(dots.map((dot) => dot.x)), y = span([limit, ...dots.map((dot) => dot.y)]);
    plot.scales(x, y);
    plot.axisX(x, runs[0].audit.across === "entropy" ? "mean entropy H, nats" : "loss");
    plot.axisY(y, "held-out excess ẽ, nats");
    const right = plot.margin.left + plot.inner.width;
    for (const run of runs) plot.add("line", { x1: plot.margin.left, x2: right, y1: plot.y(run.audit.limit), y2: plot.y(run.audit.limit), style: "stroke:var(--poisoned);stroke-dasharray:5 4" });
    plot.add("text", { x: right, y: plot.y(limit) - 5, "text-anchor": "end" }, "alarms begin here");
    const many = dots.length > 60;
    for (const dot of dots) {
      const cx = plot.x(dot.x), cy = plot.y(dot.y), colours = ["regular", "poisoned", "ink", "rest"];
      plot.points.push([cx, cy, dot]);
      plot.add("circle", { cx, cy, r: many ? 3.5 : 5.5, style: `fill:var(--${colours[dot.verdict]});opacity:${many ? 0.6 : 0.9}` });
      if (dot.verdict === 1 && dots.length <= 200) plot.add("text", { x: cx, y: cy - 9, "text-anchor": "middle", class: "strong halo" }, shortened(clientName(dot.client), 120));
    }
  },

  follow(plot) {
    if (state.client === null) return;
    for (const [x, y, dot] of plot.points || []) if (dot.client === state.client) plot.ring(x, y, 8);
  },

  hit(plot, x, y) {
    let best = null, least = 14;
    for (const point of plot.points || []) {
      const distance = Math.hypot(point[0] - x, point[1] - y);
      if (distance < least) [best, least] = [point[2], distance];
    }
    if (!best) return null;
    return { client: best.client, text: `client ${clientName(best.client)}\n${VERDICTS[best.verdict]}\nexcess ${best.y.toFixed(2)}` };
  },
});
