// First-token times by prompt length, both on logarithmic scales.

import { age, drawn, number, rate } from "./dom.js";

const HEIGHT = 270;
const PAD = { left: 58, right: 14, top: 10, bottom: 40 };

export function chart(width, backend) {
  const told = backend.first_token;
  const limit = backend.limit.max_prompt_tokens;
  const spans = ranges(told, limit);
  const x = scale(spans.tokens, PAD.left, width - PAD.right);
  const y = scale(spans.seconds, HEIGHT - PAD.bottom, PAD.top);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img" });
  svg.setAttribute("aria-label", `${backend.name}: ${summary(told)}`);
  svg.append(...grid(x, y, width));
  if (told.ceiling_tokens_per_s) svg.append(...floor(told, x, y));
  if (limit > 0) svg.append(line("longest", x.at(limit), y.from, x.at(limit), y.to));
  for (const [tokens, seconds, suspect, old] of told.answers) {
    const mark = suspect ? cross(x.at(tokens), y.at(seconds)) : dot(x.at(tokens), y.at(seconds));
    const name = `${number(tokens)} tokens, ${duration(seconds)}, ${age(old)} ago`;
    mark.append(drawn("title", {}, suspect ? `${name}: under the floor` : name));
    svg.append(mark);
  }
  return svg;
}

export function summary(told) {
  const answers = `${number(told.answers.length)} answers kept`;
  if (told.ceiling_tokens_per_s) {
    return `${answers}; prefills ${rate(told.ceiling_tokens_per_s)} tokens/s at most`;
  }
  return `${answers}; no floor yet: learnt from ${told.learnt_from} of ${told.enough} long answers`;
}

function ranges(told, limit) {
  const tokens = told.answers.map((row) => row[0]);
  const seconds = told.answers.map((row) => row[1]);
  if (limit > 0) tokens.push(limit);
  if (told.ceiling_tokens_per_s) {
    for (const each of [told.judged_from_tokens, Math.max(...tokens, told.judged_from_tokens)]) {
      seconds.push(each / told.ceiling_tokens_per_s);
    }
    tokens.push(told.judged_from_tokens);
  }
  return { tokens: decades(tokens, 10, 10000), seconds: decades(seconds, 0.01, 1) };
}

// The powers of ten around the values; those given where there are none, and one at least.
function decades(values, low, high) {
  const known = values.filter((value) => value > 0);
  const from = Math.floor(Math.log10(known.length ? Math.min(...known) : low));
  const to = Math.ceil(Math.log10(known.length ? Math.max(...known) : high));
  return [from, Math.max(to, from + 1)];
}

function scale([low, high], from, to) {
  const at = (value) => from + ((Math.log10(value) - low) / (high - low)) * (to - from);
  const clamped = (value) => Math.min(Math.max(at(value), Math.min(from, to)), Math.max(from, to));
  return { low, high, from, to, at: clamped, lowest: 10 ** low, highest: 10 ** high };
}

function grid(x, y, width) {
  const marks = [];
  for (let power = x.low; power <= x.high; power += 1) {
    const at = x.at(10 ** power);
    marks.push(line("grid", at, y.from, at, y.to));
    marks.push(text(at, HEIGHT - PAD.bottom + 16, short(10 ** power), "middle"));
  }
  for (let power = y.low; power <= y.high; power += 1) {
    const at = y.at(10 ** power);
    marks.push(line("grid", x.from, at, x.to, at));
    marks.push(text(PAD.left - 8, at + 4, duration(10 ** power), "end"));
  }
  marks.push(
    line("axis", x.from, y.from, x.to, y.from),
    line("axis", x.from, y.from, x.from, y.to),
  );
  const middle = (PAD.left + width - PAD.right) / 2;
  marks.push(text(middle, HEIGHT - 6, "prompt tokens not in the prefix cache", "middle"));
  return marks;
}

// Tokens over the fastest prefill believed, a straight line in these scales.
function floor(told, x, y) {
  const at = (tokens) => [tokens, tokens / told.ceiling_tokens_per_s];
  const clip = ([tokens, seconds]) => {
    if (seconds < y.lowest) return [y.lowest * told.ceiling_tokens_per_s, y.lowest];
    if (seconds > y.highest) return [y.highest * told.ceiling_tokens_per_s, y.highest];
    return [tokens, seconds];
  };
  const [a, b, c] = [x.lowest, told.judged_from_tokens, x.highest].map((each) => clip(at(each)));
  const place = ([tokens, seconds]) => `${x.at(tokens)},${y.at(seconds)}`;
  const edge = `${x.to},${y.at(c[1])} ${x.to},${y.from} ${x.at(b[0])},${y.from}`;
  return [
    drawn("polygon", { class: "under", points: `${place(b)} ${place(c)} ${edge}` }),
    line("floor unjudged", x.at(a[0]), y.at(a[1]), x.at(b[0]), y.at(b[1])),
    line("floor", x.at(b[0]), y.at(b[1]), x.at(c[0]), y.at(c[1])),
  ];
}

function line(kind, x1, y1, x2, y2) {
  return drawn("line", { class: kind, x1, y1, x2, y2 });
}

function dot(cx, cy) {
  return drawn("circle", { class: "answer", cx, cy, r: 3.5 });
}

function cross(x, y) {
  const d = `M${x - 5} ${y - 5}l10 10m0-10l-10 10`;
  return drawn("g", {}, drawn("path", { class: "suspect", d }));
}

function text(x, y, told, anchor) {
  return drawn("text", { x, y, "text-anchor": anchor }, told);
}

function short(value) {
  if (value >= 1e6) return `${value / 1e6}M`;
  return value >= 1e3 ? `${value / 1e3}k` : String(value);
}

export function duration(seconds) {
  const told = (value) => String(Number(value.toPrecision(3)));
  if (seconds >= 1) return `${told(seconds)} s`;
  return seconds >= 0.001 ? `${told(seconds * 1e3)} ms` : `${told(seconds * 1e6)} µs`;
}
