// One backend: where it stands, what it may be sent, and each worker's pool against its context.

import { age, element, keyed, number, plural, setLevel, setText } from "./dom.js";

const STANDING = { serving: "ok", suspect: "warning", quarantined: "danger" };
const KNOWN = { known: "ok", unknown: "danger", unsafe: "danger" };
const WORSE = ["ok", "warning", "danger"];

export function makeBackend() {
  const fact = (name) =>
    element(
      "div",
      {},
      element("dt", {}, name),
      element("dd", {}, element("span"), " ", element("small")),
    );
  const bar = element(
    "th",
    { scope: "col", class: "bar" },
    element("span", {}, element("span", {}, "0"), element("span")),
  );
  const column = (name) => element("th", { scope: "col", class: "n" }, name);
  return element(
    "article",
    { class: "backend" },
    element(
      "header",
      {},
      element("h3"),
      element("span", { class: "chip standing" }),
      element("span", { class: "chip known" }),
      element("span", { class: "engine" }),
    ),
    element(
      "dl",
      { class: "facts" },
      ...["Longest prompt", "In flight", "Queue", "Token counts"].map(fact),
    ),
    element(
      "div",
      { class: "scroll", tabindex: "0", role: "region" },
      element(
        "table",
        {},
        element("caption"),
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element("th", { scope: "col" }, "Worker"),
            bar,
            column("KV pool"),
            column("Limit"),
            column("Context"),
            column("Asked"),
          ),
        ),
        element("tbody"),
      ),
    ),
  );
}

export function showBackend(card, backend, release) {
  const { standing, limit } = backend;
  const level =
    WORSE[Math.max(WORSE.indexOf(STANDING[standing.state]), WORSE.indexOf(KNOWN[limit.state]))];
  setLevel(card, level);
  card.setAttribute("aria-label", backend.name);
  setText(card.querySelector("h3"), backend.name);
  const chip = card.querySelector(".standing");
  setLevel(chip, STANDING[standing.state]);
  setText(chip, standing.state);
  const known = card.querySelector(".known");
  known.hidden = limit.state === "known";
  setLevel(known, KNOWN[limit.state]);
  setText(known, `limit ${limit.state}`);
  setText(card.querySelector(".engine"), engine(backend));
  const facts = [...card.querySelectorAll(".facts dd")];
  [limitFact, loadFact, queueFact, countFact].forEach((fact, place) => {
    const [first, more] = fact(backend);
    setText(facts[place].querySelector("span"), first);
    setText(facts[place].querySelector("small"), more);
  });
  releaseButton(card, backend, release);
  workers(card, backend);
}

function engine(backend) {
  const facts = backend.workers.flatMap((worker) => worker.facts);
  const versions = [...new Set(facts.map((fact) => fact.version).filter(Boolean))];
  const models = [...new Set(facts.flatMap((fact) => fact.models))];
  const name = [backend.engine ?? "engine not known", ...versions].join(" ");
  const router = backend.router ? ` behind ${backend.router}` : "";
  return [`${name}${router}`, backend.url, models.join(", ")].filter(Boolean).join(" · ");
}

function limitFact({ limit, url }) {
  if (limit.state !== "known") return [limit.state, limit.reason];
  return [
    `${number(limit.max_prompt_tokens)} tokens`,
    `${limit.set_by === url ? "told" : `set by ${limit.set_by},`} ${age(limit.age_s)} ago`,
  ];
}

function loadFact(backend) {
  return [number(backend.in_flight), "requests"];
}

function queueFact({ queue }) {
  if (!queue) return ["none", "takes what comes"];
  return [
    `${number(queue.waiting)} waiting`,
    `${number(queue.prompt_tokens_in_flight)} prompt tokens in flight`,
  ];
}

function countFact({ calibration, counting }) {
  if (!calibration) return ["by the engine", ""];
  const compared =
    calibration.age_s === null
      ? "not compared yet"
      : `${plural(calibration.compared, "sample")} compared, ${age(calibration.age_s)} ago`;
  const words = {
    exact: "exact",
    differs: `differ on ${calibration.differences.length}`,
    unanswered: "engine does not tell",
    unknown: "not compared",
  };
  return [
    words[calibration.state] ?? calibration.state,
    `${counting?.tokenizer ?? ""} ${compared}`.trim(),
  ];
}

function releaseButton(card, backend, release) {
  const there = card.querySelector("header button");
  if (backend.standing.state === "serving") {
    there?.remove();
  } else if (!there) {
    const button = element(
      "button",
      { type: "button", class: "danger" },
      `Release ${backend.name}`,
    );
    button.addEventListener("click", () => release(backend.name));
    card.querySelector("header").append(button);
  }
}

function workers(card, backend) {
  const rows = backend.workers.flatMap((worker) =>
    (worker.facts.length ? worker.facts : [{ worker: worker.worker }]).map((fact) => ({
      worker,
      fact,
    })),
  );
  const sizes = rows.flatMap(({ fact }) => [
    fact.pool_tokens,
    fact.context_tokens,
    fact.max_prompt_tokens,
  ]);
  const most = Math.max(1, ...sizes.filter(Boolean));
  card.querySelector(".scroll").setAttribute("aria-label", `Workers of ${backend.name}`);
  setText(card.querySelector("caption"), `Workers of ${backend.name}, in tokens`);
  setText(card.querySelector("th.bar > span").lastChild, number(most));
  keyed(
    card.querySelector("tbody"),
    rows.map((row, place) => ({ ...row, place })),
    (row) => `${row.place} ${row.fact.worker}`,
    makeWorker,
    (line, row) => showWorker(line, row, most, backend),
  );
}

function makeWorker() {
  const parts = ["context", "pool", "gap", "limit"].map((name) => element("div", { class: name }));
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, element("span"), element("small")),
    element(
      "td",
      { class: "bar" },
      element("div", { class: "track", "aria-hidden": "true" }, ...parts),
    ),
    element("td", { class: "n" }, element("span"), element("small", { class: "short" })),
    element("td", { class: "n" }),
    element("td", { class: "n" }),
    element("td", { class: "n" }, element("span"), element("small")),
  );
}

// Workers that discovery told apart by itself are at the backend's own address.
function place(worker, url) {
  return worker.startsWith(`${url}#`) ? worker.slice(url.length + 1) : worker;
}

function showWorker(line, { worker, fact }, most, backend) {
  const [name, bar, pool, limit, context, asked] = line.children;
  setText(name.firstChild, fact.role ?? "silent");
  setText(name.lastChild, place(fact.worker, backend.url));
  const short = fact.pool_tokens != null && fact.context_tokens > fact.pool_tokens;
  const [contextBar, poolBar, gap, limitMark] = bar.firstChild.children;
  span(contextBar, 0, fact.context_tokens, most);
  span(poolBar, 0, fact.pool_tokens, most);
  span(gap, short ? fact.pool_tokens : null, fact.context_tokens, most);
  const least = [fact.max_prompt_tokens, worker.stated_limit].filter((each) => each != null);
  const longest = least.length ? Math.min(...least) : null;
  limitMark.hidden = longest === null;
  limitMark.style.left = `${(100 * (longest ?? 0)) / most}%`;
  setText(pool.firstChild, number(fact.pool_tokens));
  setText(pool.lastChild, short ? `${number(fact.context_tokens - fact.pool_tokens)} short` : "");
  setText(limit, number(longest));
  setText(context, number(fact.context_tokens));
  setText(asked.firstChild, worker.age_s === null ? "never" : `${age(worker.age_s)} ago`);
  setText(asked.lastChild, worker.trouble ? "does not answer" : "");
  setLevel(asked, worker.trouble ? "warning" : "");
}

function span(part, from, to, most) {
  part.hidden = from == null || to == null;
  part.style.left = `${(100 * (from ?? 0)) / most}%`;
  part.style.width = `${(100 * ((to ?? 0) - (from ?? 0))) / most}%`;
}
