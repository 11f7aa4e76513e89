// The page's data: JSON with places, and one block of packed 16-bit numbers that the places point into.

const data = JSON.parse(document.getElementById("data").textContent);
const MISSING = 65535;
const ABSENT = 65534;
let numbers = new Uint16Array(0);

/** Unpack the block: base64 of gzip of all low bytes followed by all high bytes. */
async function unpack() {
  const raw = Uint8Array.from(atob(data.packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = bytes.length / 2;
  numbers = new Uint16Array(count);
  for (let i = 0; i < count; i++) numbers[i] = bytes[i] | (bytes[count + i] << 8);
  data.packed = "";
}

/** What is shown now; everything else follows from it. */
const state = {
  attack: Math.max(0, data.attacks.findIndex((name) => name !== "none")),
  seed: data.shown[0],
  client: null,
  methods: [],
  labels: "classes",
};

const clientName = (client) => (data.names ? data.names[client] : String(client));
const attackName = (attack) => (data.attacks[attack] === "none" ? "no attack" : data.attacks[attack]);
const runByKey = new Map(data.runs.map((run) => [`${run.method},${run.attack},${run.seed}`, run]));
const runOf = (method) => runByKey.get(`${method},${state.attack},${state.seed}`);
const crews = data.poisoned.map((crew) => new Set(crew));
const cellOf = (method) => data.cells.find((cell) => cell.method === data.methods[method] && cell.attack === data.attacks[state.attack]);

/** A number of a packed row: NaN where there is none, undefined where the run has no such client. */
function unpacked(row, place) {
  const value = numbers[row.at + place];
  return value === ABSENT ? undefined : value === MISSING ? NaN : row.low + value * row.step;
}

/** The figure by which a client is judged, in a run: NaN without test data, undefined where the run has no such client. */
const figureOf = (run, client) => (run ? unpacked(run.figure, client) : undefined);

/** Where the 95 % interval of a client's figure begins and ends, or null. */
function intervalOf(run, client) {
  if (!run || !run.interval) return null;
  const ends = [unpacked(run.interval, client), unpacked(run.interval, data.clients + client)];
  return ends.some((end) => end === undefined || Number.isNaN(end)) ? null : ends;
}

/** How many test samples a client has. */
function testedOf(run, client) {
  const count = run && run.tested !== undefined ? numbers[run.tested + client] : ABSENT;
  return count >= ABSENT ? undefined : count;
}

const judged = data.judged;
const isShare = judged.unit === "%";
const most = isShare ? 100 : Infinity;
const axisUnit = isShare ? "%" : judged.title;
const servedName = data.served === "worst" ? "worst client" : "worst-served tenth";

/** Larger for a client that is served better. */
const goodness = (value) => (judged.higher ? value : -value);

const isPoisoned = (run, client) => run !== undefined && crews[run.poisoned].has(client);
const shownRuns = () => data.methods.map((_, method) => runOf(method));

/** The poisoned clients of what is shown: of the first run there is. */
function crewNow() {
  const run = shownRuns().find((one) => one !== undefined);
  return run ? crews[run.poisoned] : new Set();
}

/** A client's values over rounds: [[round, value], …], or null where the page does not hold them. */
function traceOf(run, kind, client) {
  const trace = run && run[`${kind}_trace`];
  const row = data.traced ? data.traced.indexOf(client) : client;
  if (!trace || row < 0) return null;
  const width = data.traced ? data.traced.length : data.clients;
  const points = [];
  trace.rounds.forEach((round, i) => {
    const value = numbers[trace.at + i * width + row];
    if (value < ABSENT) points.push([round, trace.low + value * trace.step]);
  });
  return points;
}

let orderKey = "";
let orderNow = [];

/** The order of clients in pictures: regular ones from worst to best served, then poisoned ones likewise. */
function order() {
  const key = `${state.attack},${state.seed}`;
  if (key === orderKey) return orderNow;
  const runs = shownRuns().filter((run) => run !== undefined);
  const poisoned = crewNow();
  const served = new Float64Array(data.clients);
  const here = [];
  for (let client = 0; client < data.clients; client++) {
    let sum = 0, count = 0, there = false;
    for (const run of runs) {
      const value = figureOf(run, client);
      if (value === undefined) continue;
      there = true;
      if (!Number.isNaN(value)) { sum += value; count++; }
    }
    served[client] = count ? goodness(sum / count) : Infinity;
    if (there) here.push(client);
  }
  here.sort((a, b) => poisoned.has(a) - poisoned.has(b) || served[a] - served[b] || a - b);
  orderKey = key;
  orderNow = here;
  return here;
}
