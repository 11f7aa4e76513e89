// The page: what the reader chooses, the client that is followed, the table, and when to draw.

const MOST_IN_COLOUR = data.baseline === null ? 6 : 7; // the baseline is grey

/** The baseline, and the methods that serve the worst clients best under the attack that is shown first. */
function inColour() {
  const rank = (method) => {
    const cell = cellOf(method);
    const mean = cell ? cell.estimates[data.served].mean : null;
    return mean === null ? -Infinity : goodness(mean);
  };
  const ranked = data.methods.map((_, method) => method).sort((a, b) => (rank(a) < rank(b)) - (rank(a) > rank(b)));
  const first = ranked.filter((method) => data.methods[method] === data.baseline);
  const chosen = [...first, ...ranked.filter((method) => !first.includes(method))].slice(0, MOST_IN_COLOUR);
  return chosen.sort((a, b) => a - b);
}

const MOST_TOLD = 6;

/** Who a client is, for the beginning of a sentence. */
const whoIs = (client) => `Client ${clientName(client)}${crewNow().has(client) ? " (poisoned)" : ""}:`;

/** What every method gives a client, with the interval that its test samples leave; or, of many methods, the range. */
function servedWith(client) {
  const values = shownRuns().map((run, method) => [data.methods[method], figureOf(run, client), run]).filter(([, value]) => value !== undefined);
  const known = values.filter(([, value]) => !Number.isNaN(value));
  if (!values.length) return "it is not in these runs.";
  if (!known.length) return "it has no test data.";
  const figures = isShare ? "" : `${judged.title} `;
  if (known.length <= MOST_TOLD) {
    const spans = known.map(([, , run]) => intervalOf(run, client));
    const told = known.map(([name, value], i) => `${name} ${figure(value)}${spans[i] ? ` (${bare(spans[i][0])} to ${bare(spans[i][1])})` : ""}`);
    return `${figures}${told.join(", ")}.${howSure(testedOf(known[0][2], client), spans.some((span) => span))}`;
  }
  known.sort((a, b) => a[1] - b[1]);
  const [low, high] = [known[0], known[known.length - 1]];
  return `${figures}from ${figure(low[1])} (${low[0]}) to ${figure(high[1])} (${high[0]}).${howSure(testedOf(low[2], client), false)}`;
}

/** How much to make of a client's figures. */
function howSure(count, spans) {
  if (count === undefined) return "";
  const samples = `${count.toLocaleString("en")} test sample${count === 1 ? "" : "s"}`;
  return spans ? ` In brackets: 95 % intervals from ${samples}.` : ` It has ${samples}.`;
}

/** A client in words. */
const sentence = (client) => `${whoIs(client)} ${servedWith(client)}`;

/** Follow a client through every picture; null follows nobody. */
function follow(client) {
  state.client = client;
  const field = document.getElementById("client");
  if (field) {
    if (client === null || document.activeElement !== field || findClient(field.value) !== client) field.value = client === null ? "" : clientName(client);
    document.getElementById("nobody").hidden = client === null;
  }
  say();
  for (const plot of plots) plot.follow();
}

/** The line that says who is followed; screen readers read it when it changes. */
function say(problem) {
  const line = document.getElementById("followed");
  if (!line) return;
  if (problem) line.textContent = problem;
  else if (state.client === null) line.textContent = "Click on a client in any picture, or type its name here, to follow it through all of them.";
  else {
    const bold = document.createElement("b");
    bold.textContent = whoIs(state.client);
    line.replaceChildren(bold, ` ${servedWith(state.client)}`);
  }
}

function findClient(text) {
  const wanted = text.trim();
  if (data.names) {
    const exact = data.names.indexOf(wanted);
    if (exact >= 0 || wanted === "") return exact;
    const small = data.names.map((name) => name.toLowerCase()), begins = small.findIndex((name) => name.startsWith(wanted.toLowerCase()));
    return begins >= 0 ? begins : small.findIndex((name) => name.includes(wanted.toLowerCase()));
  }
  return /^\d+$/.test(wanted) && Number(wanted) < data.clients ? Number(wanted) : -1;
}

/** The neighbour in the order of names; from nobody, the first. */
function step(by) {
  const now = state.client === null ? (by > 0 ? -1 : data.clients) : state.client;
  follow(clamp(now + by, 0, data.clients - 1));
}

function listen() {
  document.querySelector(".toolbar").hidden = false;
  const on = (id, event, action) => { const element = document.getElementById(id); if (element) element.addEventListener(event, action); };
  on("attack", "change", (event) => { state.attack = Number(event.target.value); drawAll(); });
  on("draw", "change", (event) => { state.seed = Number(event.target.value); drawAll(); });
  on("previous", "click", () => step(-1));
  on("next", "click", () => step(1));
  on("nobody", "click", () => { follow(null); document.getElementById("client").focus(); });
  on("client", "input", (event) => {
    const text = event.target.value;
    const client = findClient(text);
    if (client >= 0) follow(client);
    else if (text.trim() === "") follow(null);
    else say(`There is no client “${text.trim()}”.${data.names ? "" : ` Clients are numbered 0 to ${data.clients - 1}.`}`);
  });
  on("client", "keydown", (event) => {
    if (event.key === "ArrowUp" || event.key === "ArrowRight" && event.target.value === "") step(1);
    else if (event.key === "ArrowDown") step(-1);
    else if (event.key === "Escape") follow(null);
    else return;
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-labels]"))
    button.addEventListener("click", () => {
      state.labels = button.dataset.labels;
      for (const other of document.querySelectorAll("[data-labels]")) other.setAttribute("aria-pressed", String(other === button));
      for (const plot of plots) if (plot.name === "partition") plot.draw();
    });
  for (const head of document.querySelectorAll(".results [data-column]"))
    head.querySelector("button").addEventListener("click", () => sort(head));
  const copy = document.querySelector(".copy");
  if (copy) copy.addEventListener("click", () => copyCommand(copy));
}

function copyCommand(button) {
  const code = button.parentElement.querySelector("code");
  const range = document.createRange();
  range.selectNodeContents(code);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl C";
}

/** Sort the table by a column: best first, then turned round; by name from A to Z first. */
function sort(head) {
  const column = Number(head.dataset.column);
  const table = head.closest("table"), body = table.tBodies[0];
  const metric = column ? data.metrics[(column - 1) % data.metrics.length] : "name";
  const falling = metric !== "name" && metric !== "variance" && judged.higher;
  const now = head.getAttribute("aria-sort");
  const direction = now === "none" ? (falling ? "descending" : "ascending") : now === "ascending" ? "descending" : "ascending";
  for (const other of table.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const key = (row) => (column ? Number(row.cells[column].dataset.value ?? NaN) : row.cells[0].textContent);
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (!column) return sign * x.localeCompare(y);
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return sign * (x - y);
  });
  body.append(...rows);
}

/** Buttons that put methods in colour, where there are more than colours. */
function chooser() {
  const box = document.querySelector(".chooser");
  if (!box || data.methods.length <= MOST_IN_COLOUR) { if (box) box.remove(); return; }
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "methods in colour");
  data.methods.forEach((name, method) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.method = method;
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    button.append(swatch, name);
    button.addEventListener("click", () => {
      const there = state.methods.includes(method);
      if (!there && state.methods.length >= MOST_IN_COLOUR) state.methods.splice(state.methods.findIndex((one) => data.methods[one] !== data.baseline), 1);
      state.methods = there ? state.methods.filter((one) => one !== method) : [...state.methods, method];
      drawAll();
    });
    box.append(button);
  });
}

function paintSwatches() {
  for (const element of document.querySelectorAll("[data-method]")) {
    const method = Number(element.dataset.method), there = state.methods.includes(method);
    const swatch = element.querySelector(".swatch");
    if (swatch) swatch.style.setProperty("--swatch", there ? `var(--${methodColour(method)})` : "");
    if (element.tagName === "BUTTON") element.setAttribute("aria-pressed", String(there));
  }
  for (const element of document.querySelectorAll(".results [data-attack], .map[data-attack]")) {
    const other = Number(element.dataset.attack) !== state.attack;
    element.classList.toggle("other", other);
    if (element.classList.contains("map")) element.hidden = other && !printing;
  }
  const table = document.querySelector(".results");
  if (table) table.classList.toggle("one", data.attacks.length > 1);
}

/** Views that have a panel for each method in colour. */
function panels() {
  for (const box of document.querySelectorAll("[data-panels]")) {
    const name = box.dataset.panels;
    if (!views[name]) continue;
    const methods = state.methods.filter((method) => runOf(method) !== undefined);
    if (box.dataset.now === methods.join()) continue;
    box.dataset.now = methods.join();
    for (let i = plots.length - 1; i >= 0; i--) if (plots[i].name === name) plots.splice(i, 1);
    box.replaceChildren();
    for (const method of methods) {
      const figure = document.createElement("figure"), title = document.createElement("h3"), host = document.createElement("div");
      title.textContent = data.methods[method];
      host.className = "plot";
      Object.assign(host.dataset, { view: name, panel: method, label: `${views[name].label} with ${data.methods[method]}` });
      figure.append(title, host);
      box.append(figure);
      plots.push(new Plot(host));
    }
  }
}

let printing = false;

/** Paper is light: colours of canvases are drawn again for it, and what a choice had hidden is shown. */
function print(now) {
  printing = now;
  document.documentElement.classList.toggle("printing", now);
  drawAll();
}

function drawAll() {
  hideTip();
  panels();
  paintSwatches();
  for (const plot of plots) plot.draw();
  say();
}

async function start() {
  try {
    await unpack();
  } catch (problem) {
    say("This browser cannot unpack the numbers of the pictures; the tables are complete. A browser of 2023 or later can.");
    return;
  }
  state.methods = inColour();
  listen();
  chooser();
  for (const host of document.querySelectorAll(".plot[data-view]")) if (views[host.dataset.view]) plots.push(new Plot(host));
  drawAll();
  let width = document.body.clientWidth;
  new ResizeObserver(() => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; drawAll(); } }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  performance.mark("drawn");
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
}

start();
