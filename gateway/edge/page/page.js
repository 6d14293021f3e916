// Asks the gateway every other second and shows what it says.

import { makeBackend, showBackend } from "./backends.js";
import { chart, summary } from "./chart.js";
import { age, byId, element, keyed, number, plural, rate, setLevel, setText } from "./dom.js";
import { chosen, onChoice, options, showIncidents } from "./incidents.js";

const EVERY = 2000; // milliseconds
const PATIENCE = 5000; // milliseconds for an answer
const LATE = 7000; // milliseconds without one after which what is shown is old

const page = { told: null, incidents: [], asOf: null, failure: "", timer: 0, asking: null };

// --- asking ---

async function get(path, signal) {
  const answer = await fetch(path, {
    cache: "no-store",
    signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]),
  });
  if (!answer.ok) throw new Error(`${path.split("?")[0]} answers ${answer.status}`);
  return answer.json();
}

async function ask() {
  clearTimeout(page.timer);
  page.asking?.abort();
  const asking = new AbortController();
  page.asking = asking;
  try {
    const [told, incidents] = await Promise.all([
      get("overview", asking.signal),
      get(`incidents?${chosen()}`, asking.signal),
    ]);
    Object.assign(page, { told, incidents, asOf: performance.now(), failure: "" });
  } catch (error) {
    if (asking.signal.aborted) return; // asked anew meanwhile
    page.failure = error.message;
  }
  if (!document.hidden) page.timer = setTimeout(ask, EVERY);
  if (!page.failure) show(page.told, page.incidents);
  freshness();
}

function freshness() {
  const old = page.asOf === null ? null : performance.now() - page.asOf;
  const stale = page.failure !== "" || (old !== null && old > LATE);
  const since = old === null ? "" : `as of ${age(old / 1000)} ago`;
  const state = stale ? "stale" : old === null ? "waiting" : "fresh";
  byId("asof").dataset.state = document.body.dataset.state = state;
  setText(
    byId("asof"),
    stale
      ? ["the gateway does not answer", since].filter(Boolean).join("; ")
      : since || "asking the gateway",
  );
  if (stale) {
    byId("verdict").dataset.level = "danger";
    setText(byId("headline"), "The gateway does not answer");
    const rest = page.told === null ? "Nothing is known yet." : "What is below is from before.";
    troubles([
      { level: "danger", backend: "", text: `${page.failure || "no answer in time"}. ${rest}` },
    ]);
  }
  document.title = stale
    ? "✕ poolgate"
    : page.told
      ? `${mark(page.told.verdict.level)} poolgate`
      : "poolgate";
}

function mark(level) {
  return { ok: "✓", warning: "!", danger: "✕" }[level];
}

// --- showing ---

function show(told, incidents) {
  const processes = told.processes ? `, ${number(told.processes.length)} processes` : "";
  setText(
    byId("about"),
    `${told.version}, up ${age(told.uptime_s)}${processes}, ${number(told.in_flight)} in flight`,
  );
  byId("verdict").dataset.level = told.verdict.level;
  setText(byId("headline"), told.verdict.headline);
  troubles(told.verdict.troubles);
  keyed(
    byId("backends"),
    told.backends,
    (one) => one.name,
    makeBackend,
    (card, one) => showBackend(card, one, confirmRelease),
  );
  traffic(told.traffic);
  checks(told.checks);
  charts(told.backends);
  options(byId("by-kind"), Object.keys(told.checks).sort());
  options(
    byId("by-backend"),
    told.backends.map((one) => one.name),
  );
  showIncidents(incidents);
}

function troubles(rows) {
  keyed(
    byId("troubles"),
    rows,
    (row) => `${row.backend}\n${row.level}\n${rows.indexOf(row)}`,
    () => element("li", {}, element("b"), element("span")),
    (item, row) => {
      setLevel(item, row.level);
      setText(item.firstChild, row.backend ? `${row.backend}: ` : "");
      setText(item.lastChild, row.text);
    },
  );
}

// --- traffic and checks ---

function traffic(told) {
  const seconds = Math.max(told.seconds, 1);
  setText(byId("window"), `${Math.round(seconds)} s`);
  const body = byId("traffic").tBodies[0];
  keyed(
    body,
    told.tenants,
    (tenant) => tenant.id,
    (tenant) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, tenant.id),
        ...Array.from({ length: 7 }, () => element("td", { class: "n" })),
      ),
    (line, tenant) => counts([...line.children].slice(1), tenant, seconds),
  );
  counts([...byId("traffic").tFoot.rows[0].children].slice(1), told.total, seconds);
  byId("left-out").hidden = told.left_out === 0;
  setText(
    byId("left-out"),
    `and ${plural(told.left_out, "tenant")} more, counted in the last line`,
  );
}

function counts(cells, told, seconds) {
  const tokens = (told.input_tokens + told.output_tokens) / seconds;
  const shown = [
    [told.requests, number(told.requests), ""],
    [told.requests, rate(told.requests / seconds), ""],
    [tokens, rate(tokens), ""],
    [told.answered_400, number(told.answered_400), "warning"],
    [told.answered_429, number(told.answered_429), "warning"],
    [told.answered_5xx, number(told.answered_5xx), "danger"],
    [told.in_flight, number(told.in_flight), ""],
  ];
  shown.forEach(([value, text, level], place) => countCell(cells[place], value, text, level));
}

function countCell(cell, value, text, level) {
  setText(cell, text);
  cell.classList.toggle("zero", value === 0);
  setLevel(cell, value > 0 ? level : "");
}

function checks(told) {
  const verdicts = ["ok", "unverifiable", "mismatch", "leak"];
  const levels = ["", "", "warning", "danger"];
  keyed(
    byId("checks").tBodies[0],
    Object.keys(told).sort(),
    (name) => name,
    (name) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        ...verdicts.map(() => element("td", { class: "n" })),
      ),
    (line, name) =>
      verdicts.forEach((verdict, place) => {
        const count = told[name][verdict] ?? 0;
        countCell(line.children[place + 1], count, number(count), levels[place]);
      }),
  );
}

// --- charts ---

function charts(backends) {
  const place = byId("charts");
  keyed(
    place,
    backends,
    (one) => one.name,
    makeChart,
    () => {},
  );
  // Once all have their place, and so their width.
  backends.forEach((backend, index) => showChart(place.children[index], backend));
}

function makeChart() {
  return element(
    "figure",
    {},
    element(
      "figcaption",
      {},
      element("b"),
      element("span"),
      element("span", { "data-level": "danger" }),
    ),
    element("div"),
  );
}

function showChart(figure, backend) {
  const [name, about, under] = figure.firstChild.children;
  const suspects = backend.first_token.answers.filter((row) => row[2]).length;
  setText(name, backend.name);
  setText(about, summary(backend.first_token));
  setText(under, suspects ? `${number(suspects)} under the floor` : "");
  const place = figure.lastChild;
  const drawn = JSON.stringify([
    place.clientWidth,
    backend.first_token.answers.map((row) => row.slice(0, 3)),
    backend.first_token.ceiling_tokens_per_s,
    backend.limit.max_prompt_tokens,
  ]);
  if (figure.drawn !== drawn) {
    figure.drawn = drawn;
    place.replaceChildren(chart(Math.max(280, place.clientWidth), backend));
  }
}

// --- releasing ---

function confirmRelease(name) {
  const backend = page.told.backends.find((one) => one.name === name);
  if (!backend) return;
  const { state, reason, incidents } = backend.standing;
  setText(byId("ask-title"), `Release ${name}?`);
  setText(
    byId("ask-text"),
    `It is ${state} because of ${reason}, ${plural(incidents.length, "incident")}. Once released it gets requests again, and what was held against it is forgotten.`,
  );
  setText(byId("ask-failed"), "");
  byId("ask").dataset.backend = name;
  byId("ask").showModal();
  byId("ask-no").focus();
}

async function release() {
  const name = byId("ask").dataset.backend;
  try {
    const answer = await fetch(`backends/${encodeURIComponent(name)}/release`, {
      method: "POST",
      signal: AbortSignal.timeout(PATIENCE),
    });
    if (!answer.ok) throw new Error(`answered ${answer.status}`);
    byId("ask").close();
  } catch (error) {
    setText(byId("ask-failed"), `Not released: ${error.message}.`);
  }
  ask();
}

byId("ask-no").addEventListener("click", () => byId("ask").close());
byId("ask-yes").addEventListener("click", release);
onChoice(ask);
document.addEventListener("visibilitychange", () => document.hidden || ask());
setInterval(freshness, 1000);
ask();
