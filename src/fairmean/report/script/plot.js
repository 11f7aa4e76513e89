// Drawing: a plot is a canvas for many marks under an SVG for axes, words and the client that is followed.

const NAMESPACE = "http://www.w3.org/2000/svg";
const views = {};
const plots = [];
const measure = document.createElement("canvas").getContext("2d");

/** A view draws itself with draw(plot); follow(plot) marks the client; hit(plot, x, y) says what is there. */
function view(name, parts) { views[name] = parts; }

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function textWidth(text, size = 12) {
  measure.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return measure.measureText(text).width;
}

/** A text that fits a width, with … where something had to go. */
function fitted(text, width) {
  if (textWidth(text) <= width) return text;
  let length = text.length;
  while (length > 1 && textWidth(`${text.slice(0, length)}…`) > width) length--;
  return `${text.slice(0, length)}…`;
}

/** A name that fits a width: names often begin alike, so what goes is in the middle. */
function shortened(name, width) {
  if (textWidth(name) <= width) return name;
  let kept = name.length - 1;
  const cut = () => `${name.slice(0, Math.ceil(kept / 2))}…${name.slice(name.length - Math.floor(kept / 2))}`;
  while (kept > 2 && textWidth(cut()) > width) kept--;
  return cut();
}

/** About `count` round numbers from low to high. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9) || 0; i * step <= high + step * 1e-9; i++) result.push(i * step + 0);
  return result;
}

/** A number of a tick: as many decimals as its step needs. */
function tickText(value, all) {
  const step = all.length > 1 ? Math.abs(all[1] - all[0]) : Math.abs(value) || 1;
  const digits = clamp(-Math.floor(Math.log10(step) + 1e-9), 0, 6);
  const short = Number.isInteger(Number((step * 10 ** digits).toFixed(6))) ? digits : digits + 1;
  return value.toLocaleString("en", { minimumFractionDigits: short, maximumFractionDigits: short }).replace("-", "−");
}

/** A number with so many decimals; a very large one with a power of ten. */
function fixed(value, digits) {
  if (Math.abs(value) >= 1e7 || (digits > 6 && value)) {
    const [mantissa, exponent] = value.toExponential(2).split("e");
    return `${mantissa}·10${[...exponent.replace("+", "")].map((letter) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(letter)]).join("")}`.replace("-", "−");
  }
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
}

/** A figure in so many digits as all figures of the page have; in words where there is none. */
const bare = (value) => fixed(value, judged.digits);
const figure = (value) => (Number.isNaN(value) ? "no test data" : bare(value) + (isShare ? " %" : ""));

/** A figure in a narrow field. */
const short = (value) => (isShare ? value.toFixed(0) : fixed(value, Math.max(0, judged.digits - 1)));

/** The lowest and the highest of some figures. Of errors, which have no bound, those that are far above the others are
 * cut off, so that one method that went wrong does not hide how the others differ. */
function rangeOf(values) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return isShare ? [0, 100] : [0, 1];
  let low = Infinity, high = -Infinity;
  for (const value of known) { low = Math.min(low, value); high = Math.max(high, value); }
  if (isShare) return [low, high];
  const sorted = Float64Array.from(known).sort(), middle = sorted[Math.floor(sorted.length / 2)];
  return [low, high > 6 * middle ? Math.max(4 * middle, low) : high];
}
const few = (value) => (value === 0 ? "0" : Number(value.toPrecision(3)).toString());

class Plot {
  constructor(host) {
    this.host = host;
    this.name = host.dataset.view;
    this.panel = Number(host.dataset.panel || 0);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.svg = this.make("svg", { role: "img", "aria-label": host.dataset.label });
    this.back = this.make("g", {});
    this.front = this.make("g", {});
    this.svg.append(this.back, this.front);
    host.append(this.canvas, this.svg);
    if (views[this.name].hit) {
      host.dataset.cursor = "";
      host.addEventListener("pointermove", (event) => this.point(event));
      host.addEventListener("pointerleave", () => hideTip());
      host.addEventListener("click", (event) => this.click(event));
    }
    if (views[this.name].slider) this.slide();
  }

  make(name, attributes, text) {
    const element = document.createElementNS(NAMESPACE, name);
    for (const key in attributes) if (attributes[key] !== undefined) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  /** Put an element behind (axes, words) or, with `front`, above everything. */
  add(name, attributes, text, front = false) {
    const element = this.make(name, attributes, text);
    (front ? this.front : this.back).append(element);
    return element;
  }

  /** Empty the plot and give it its size; the width is that of the page. */
  begin(height, margin) {
    this.width = Math.max(this.host.clientWidth, 240);
    this.height = height;
    this.margin = { top: 8, right: 8, bottom: 34, left: 40, ...margin };
    this.inner = { width: this.width - this.margin.left - this.margin.right, height: height - this.margin.top - this.margin.bottom };
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.back.replaceChildren();
    this.front.replaceChildren();
    const ratio = Math.min(window.devicePixelRatio || 1, 2.5);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, height);
  }

  scales(x, y) {
    const { left, top } = this.margin, { width, height } = this.inner;
    this.x = (value) => left + ((value - x[0]) / (x[1] - x[0] || 1)) * width;
    this.y = (value) => top + height - ((value - y[0]) / (y[1] - y[0] || 1)) * height;
  }

  axisX(domain, title, count = Math.max(2, Math.floor(this.inner.width / 80))) {
    const bottom = this.margin.top + this.inner.height;
    const all = ticks(domain[0], domain[1], count);
    for (const value of all) {
      this.add("line", { x1: this.x(value), x2: this.x(value), y1: this.margin.top, y2: bottom, class: "grid" });
      this.add("text", { x: this.x(value), y: bottom + 16, "text-anchor": "middle" }, tickText(value, all));
    }
    if (title) this.add("text", { x: this.margin.left + this.inner.width, y: bottom + 31, "text-anchor": "end" }, title);
  }

  axisY(domain, title, count = Math.max(2, Math.floor(this.inner.height / 48))) {
    const all = ticks(domain[0], domain[1], count);
    for (const value of all) {
      this.add("line", { x1: this.margin.left, x2: this.margin.left + this.inner.width, y1: this.y(value), y2: this.y(value), class: "grid" });
      this.add("text", { x: this.margin.left - 8, y: this.y(value) + 4, "text-anchor": "end" }, tickText(value, all));
    }
    if (title) this.add("text", { x: 0, y: 12, class: "title" }, title);
  }

  /** A ring around a place, seen on any ground. */
  ring(x, y, radius = 7) {
    this.add("circle", { cx: x, cy: y, r: radius, class: "ring-halo" }, undefined, true);
    this.add("circle", { cx: x, cy: y, r: radius, class: "ring" }, undefined, true);
  }

  place(event) {
    const box = this.host.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.width, ((event.clientY - box.top) / box.height) * this.height];
  }

  point(event) {
    const there = views[this.name].hit(this, ...this.place(event));
    if (there) showTip(there.text, event);
    else hideTip();
  }

  click(event) {
    const there = views[this.name].hit(this, ...this.place(event));
    if (there && there.client !== undefined) follow(there.client);
  }

  /** Arrow keys walk through the clients in the order of the picture. */
  slide() {
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("role", "slider");
    this.svg.addEventListener("keydown", (event) => {
      const last = order().length - 1;
      const now = state.client === null ? -1 : order().indexOf(state.client);
      const to = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: last, PageUp: now + 10, PageDown: now - 10 }[event.key];
      if (event.key === "Escape") follow(null);
      else if (to !== undefined) follow(order()[clamp(to, 0, last)]);
      else return;
      event.preventDefault();
    });
  }

  draw() {
    views[this.name].draw(this);
    this.mark();
  }

  /** Another client is followed: a view whose axes must reach it is drawn again, of others only the marks are. */
  follow() {
    if (views[this.name].reaches) this.draw();
    else this.mark();
  }

  mark() {
    this.front.replaceChildren();
    if (views[this.name].slider) {
      const now = state.client === null ? -1 : order().indexOf(state.client);
      this.svg.setAttribute("aria-valuemin", 0);
      this.svg.setAttribute("aria-valuemax", Math.max(0, order().length - 1));
      this.svg.setAttribute("aria-valuenow", Math.max(0, now));
      this.svg.setAttribute("aria-valuetext", state.client === null ? "no client is followed" : sentence(state.client));
    }
    if (views[this.name].follow) views[this.name].follow(this);
  }
}

const tip = document.querySelector(".tip");

function showTip(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const main = tip.parentElement.getBoundingClientRect();
  const left = clamp(event.clientX - main.left + 14, 4, main.width - tip.offsetWidth - 4);
  const above = event.clientY - main.top - tip.offsetHeight - 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > window.scrollY - main.top - window.scrollY ? above : event.clientY - main.top + 18}px`;
}

function hideTip() { tip.hidden = true; }

/** Names of rows at the left of a plot; the width they need, at most a share of the page. */
function rowMargin(names, host, share = 0.3) {
  const widest = Math.max(...names.map((name) => textWidth(name)), 20);
  return Math.min(widest + 14, Math.max(64, host.clientWidth * share));
}

/** The colour of a method: its own while it is among those in colour, the baseline always grey. */
function methodColour(method) {
  if (data.methods[method] === data.baseline) return "m0";
  const place = state.methods.filter((one) => data.methods[one] !== data.baseline).indexOf(method);
  return place < 0 ? "rest" : `m${1 + (place % 6)}`;
}

const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const RAMP = VIRIDIS.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

/** Viridis at a share between 0 and 1. */
function viridis(share) {
  const at = clamp(share, 0, 1) * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[i].map((low, k) => Math.round(low + (at - i) * (RAMP[i + 1][k] - low)));
}
