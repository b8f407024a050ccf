// The audit as columns, and the few words for showing a value.

const audit = JSON.parse(document.getElementById('payload').textContent);
const { count, classes, quadrants } = audit;

function unpack(column) {
  if (column === null) return null;
  const bytes = decodeBase64(column.data);
  const view = { Uint8Array, Uint16Array, Float32Array }[column.type];
  return new view(bytes.buffer);
}

function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

const columns = Object.fromEntries(Object.entries(audit.columns).map(([name, column]) => [name, unpack(column)]));
const { given, suggested, disagreement, ambiguity, quadrant, clean } = columns;
const [ambiguityThreshold, disagreementThreshold] = audit.thresholds;
const CLEAR = 0, AMBIGUOUS = 1, MISLABELLED = 2, HARD = 3;
const CONTRADICTED = 4; // as a filter: mislabelled or hard
const contradicted = (i) => quadrant[i] === MISLABELLED || quadrant[i] === HARD;

const idOf = (i) => (audit.ids ? audit.ids[i] : String(i));
const givenProbability = (i) => columns.givenProbability[i] / 65535;
const suggestedProbability = (i) => columns.suggestedProbability[i] / 65535;

// order[r] is the example of rank r, rank[i] the rank of example i: the most suspicious first.
function ranking(scores) {
  const order = Uint32Array.from({ length: count }, (_, i) => i).sort((a, b) => scores[b] - scores[a] || a - b);
  const rank = new Uint32Array(count);
  order.forEach((example, r) => { rank[example] = r; });
  return { order, rank };
}
const bySuspicion = ranking(disagreement);
const byAmbiguity = ranking(ambiguity);

const quadrantCounts = quadrants.map(() => 0);
for (const q of quadrant) quadrantCounts[q]++;

const number = new Intl.NumberFormat('en');
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

function percent(share) {
  const value = 100 * share;
  if (value === 0 || value === 100) return `${value}\u00a0%`;
  if (value < 0.1) return '<\u00a00.1\u00a0%';
  if (value > 99.9) return '>\u00a099.9\u00a0%';
  return `${value.toFixed(value < 10 || value > 90 ? 1 : 0)}\u00a0%`;
}

function brief(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  const odd = size !== 0 && (size < 1e-3 || size >= 1e5);
  return (odd ? value.toExponential(1) : String(Number(value.toPrecision(3)))).replaceAll('-', '−');
}

// Everything that comes from data passes through here, as text and never as markup.
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') node.textContent = value;
    else if (name === 'class') node.className = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (name) => document.getElementById(name);
const announce = (text) => { byId('live').textContent = text; };
