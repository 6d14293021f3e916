// The latest incidents, and the choice among them.

import { byId, element, keyed, number, setLevel, setText } from "./dom.js";

const FILTERS = ["kind", "backend", "tenant"];

export function onChoice(ask) {
  for (const name of FILTERS) byId(`by-${name}`).addEventListener("change", ask);
}

export function chosen() {
  const query = new URLSearchParams({ limit: "50" });
  for (const name of FILTERS) {
    const value = byId(`by-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  return query;
}

export function options(select, names) {
  keyed(
    select,
    ["", ...names],
    (name) => name,
    (name) => element("option", { value: name }, name || "all"),
    () => {},
  );
}

export function showIncidents(incidents) {
  keyed(
    byId("incidents").tBodies[0],
    incidents,
    (one) => one.id,
    (one) => {
      const found = one.finding;
      const cell = (text, more = "") => element("td", {}, text, element("small", {}, more));
      return element(
        "tr",
        {},
        cell(one.time.slice(11, 19), one.time.slice(0, 10)),
        cell(one.kind, found.verdict),
        cell(one.backend, `then ${one.standing}`),
        cell(one.evidence),
        cell(...done(one)),
        cell(found.reason || found.verdict, numbers(one)),
        element("td", { class: "mono" }, one.id, element("small", {}, one.request_id ?? "")),
      );
    },
    (line, one) =>
      setLevel(line.children[4], one.withheld || one.request_id === null ? "" : "danger"),
  );
  const filtered = FILTERS.some((name) => byId(`by-${name}`).value);
  byId("none").hidden = incidents.length > 0;
  setText(byId("none"), filtered ? "None of these." : "None since the gateway started.");
}

function done({ withheld, request_id, bytes_released }) {
  if (request_id === null) return ["nobody's answer", "found by the gateway itself"];
  return withheld ? ["withheld"] : ["passed on", `${number(bytes_released)} bytes released`];
}

function numbers({ kind, finding }) {
  const { expected, returned } = finding;
  if (kind === "gate") return `${returned} failed`;
  if (kind === "probe") return `at ${returned} tokens, the limit is ${expected}`;
  if (expected === null && returned === null) return "";
  if (kind === "latency") return `after ${returned} s, at least ${expected} s are needed`;
  return `expected ${expected ?? "nothing"}, got ${returned ?? "nothing"}`;
}
