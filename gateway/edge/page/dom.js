// Building and updating the page. Everything told by others is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const twoPlaces = new Intl.NumberFormat("en-US", {
  minimumFractionDigits: 2,
  maximumFractionDigits: 2,
});

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Only what changed is touched, so that a selection in the page outlives the next answer.
export function setText(node, text) {
  const told = String(text);
  if (node.textContent !== told) node.textContent = told;
}

export function setLevel(node, level) {
  if (level) node.dataset.level = level;
  else delete node.dataset.level;
}

// One child a row, in the rows' order; those of before are kept by key, and with them the focus.
export function keyed(parent, rows, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const row of rows) {
    const key = String(keyOf(row));
    let child = before.get(key);
    before.delete(key);
    if (!child) {
      child = make(row);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, row);
  }
  for (const gone of before.values()) gone.remove();
}

export function number(value) {
  return value === null || value === undefined ? "unknown" : whole.format(value);
}

export function rate(value) {
  return value >= 100 || value === 0 ? whole.format(value) : twoPlaces.format(value);
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

export function plural(count, thing) {
  return `${number(count)} ${thing}${count === 1 ? "" : "s"}`;
}
