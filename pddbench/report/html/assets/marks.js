// Elements, numbers and scales. Text only ever becomes text nodes: nothing here parses markup.
const SVG = 'http://www.w3.org/2000/svg';

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  return fill(node, attributes, children);
}

function draw(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  return fill(node, attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Three significant digits, no exponent.
function plain(x) {
  const size = Math.abs(x);
  if (size === 0) return '0';
  if (size >= 99.95) return Math.round(x).toLocaleString('en');
  return String(Number(x.toPrecision(3)));
}

function seconds(x) {
  if (x === null || x === undefined) return '–';
  if (typeof x === 'string') return x;
  const size = Math.abs(x);
  if (size === 0) return '0';
  if (size < 9.995e-4) return plain(x * 1e6) + ' µs';
  return size < 0.9995 ? plain(x * 1e3) + ' ms' : plain(x) + ' s';
}

function percent(x) {
  return plain(100 * x) + '%';
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const x of values) if (Number.isFinite(x)) { low = Math.min(low, x); high = Math.max(high, x); }
  return low <= high ? [low, high] : [0, 1];
}

// A scale maps a value to 0..1 and knows its ticks: [value, label].
function linear(low, high, label = plain, want = 5) {
  if (high <= low) high = low + 1;
  const raw = (high - low) / want, ten = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * ten).find(s => s >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9) + 1e-12; i++) ticks.push([i * step, label(i * step)]);
  return {at: x => (x - low) / (high - low), ticks};
}

function logarithmic(low, high, label = seconds) {
  low = Math.max(low, 1e-9);
  if (high <= low) high = low * 10;
  const a = Math.log10(low), b = Math.log10(high), span = b - a;
  const leads = span < 1.2 ? [1, 2, 3, 5, 7] : span < 2.6 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = Math.floor(a); e <= Math.ceil(b); e++)
    for (const lead of leads) {
      const x = lead * 10 ** e;
      if (x >= low * 0.999 && x <= high * 1.001) ticks.push([x, label(x)]);
    }
  return {at: x => (Math.log10(Math.max(x, low)) - a) / span, ticks};
}

// Decades of 1 - q are equally wide: the tail gets the room it deserves.
function percentiles(rows) {
  const end = Math.max(Math.log10(Math.max(rows, 10)), 1);
  const ticks = [0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999].filter(q => -Math.log10(1 - q) <= end);
  return {at: q => -Math.log10(Math.max(1 - q, 1e-12)) / end, ticks: ticks.map(q => [q, 'P' + Number((100 * q).toFixed(4))])};
}

// Linear near 0, logarithmic beyond: differences of either sign over many decades.
function signed(low, high, knee) {
  const f = x => Math.asinh(x / knee), a = f(low), b = f(high);
  const ticks = [[0, '0']];
  for (let e = -6; e <= 4; e++)
    for (const sign of [-1, 1]) {
      const x = sign * 10 ** e;
      if (Math.abs(x) >= knee * 2 && x >= low && x <= high) ticks.push([x, (x > 0 ? '+' : '−') + seconds(Math.abs(x))]);
    }
  return {at: x => (f(x) - a) / (b - a), ticks};
}
