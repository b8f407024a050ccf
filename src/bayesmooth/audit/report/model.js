// What the page knows of the audit: its columns, what was found, and what an example looks like.

const audit = JSON.parse(document.getElementById('payload').textContent);
const { count, classes, quadrants } = audit;

const decodeBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function unpack(column) {
  if (column === null) return null;
  const view = { Int8Array, Uint8Array, Uint16Array, Uint32Array, Float32Array }[column.type];
  return new view(decodeBase64(column.data).buffer);
}

const columns = Object.fromEntries(Object.entries(audit.columns).map(([name, column]) => [name, unpack(column)]));
const { given, suggested, disagreement, ambiguity, quadrant, clean } = columns;

const idOf = (i) => (audit.ids ? audit.ids[i] : String(i));
const nameOf = (i) => (audit.digested ? idOf(i).split('-')[0] : idOf(i)); // a row without an id is called by its number
const givenName = (i) => classes[given[i]];
const suggestedName = (i) => classes[suggested[i]];
const agrees = (i) => given[i] === suggested[i];
const givenProbability = (i) => columns.givenProbability[i] / 65535;
const suggestedProbability = (i) => columns.suggestedProbability[i] / 65535;

// The most probable classes of an example, or its worst tags: [position, probability], as far as they are known.
const packed = audit.label.likeliest;
const likely = packed && { ...packed, names: unpack(packed.names), shares: unpack(packed.shares) };
function likeliest(i) {
  if (!likely) return [];
  const places = Array.from({ length: likely.each }, (_, k) => i * likely.each + k);
  return places.map((k) => [likely.names[k], likely.shares[k] / 65535]);
}

// The nearest examples that carry the given label, and those that carry the suggested one.
const similar = new Map((audit.similar?.examples ?? []).map((example, k) => [example, {
  given: audit.similar.given[k].filter((i) => i >= 0),
  suggested: audit.similar.suggested[k].filter((i) => i >= 0),
}]));

// order[r] is the example of rank r, rank[i] the rank of example i: the highest score first.
function ranking(scores) {
  const order = Uint32Array.from({ length: count }, (_, i) => i).sort((a, b) => scores[b] - scores[a] || a - b);
  const rank = new Uint32Array(count);
  order.forEach((example, r) => { rank[example] = r; });
  return { order, rank };
}
let suspicion = ranking(disagreement); // until decisions teach another

const [CLEAR, AMBIGUOUS, MISLABELLED, HARD] = [0, 1, 2, 3]; // positions in quadrants
const contradicted = (i) => quadrant[i] === MISLABELLED || quadrant[i] === HARD;
const quadrantCounts = quadrants.map(() => 0);
for (const q of quadrant) quadrantCounts[q]++;
const contradictedCount = quadrantCounts[MISLABELLED] + quadrantCounts[HARD];

const classCounts = classes.map(() => 0);
for (const k of given) classCounts[k]++;

// How often each label looks like another one, most often first.
const pairCounts = new Map();
for (let i = 0; i < count; i++) {
  const pair = given[i] * classes.length + suggested[i];
  pairCounts.set(pair, (pairCounts.get(pair) ?? 0) + 1);
}
const confusions = [...pairCounts]
  .map(([pair, times]) => ({ row: Math.floor(pair / classes.length), column: pair % classes.length, times }))
  .filter(({ row, column }) => row !== column)
  .sort((a, b) => b.times - a.times || a.row - b.row);

// ---- Words and nodes ----

const number = new Intl.NumberFormat('en');
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
const plural = (some, one, many = `${one}s`) => `${number.format(some)} ${some === 1 ? one : many}`;

function percent(share) {
  const value = 100 * share;
  if (value === 0 || value === 100) return `${value}\u00a0%`;
  if (value < 0.1) return '<\u00a00.1\u00a0%';
  if (value > 99.9) return '>\u00a099.9\u00a0%';
  return `${value.toFixed(1)}\u00a0%`;
}

const brief = (value) => String(Number(value.toPrecision(3))).replaceAll('-', '−');

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
const on = (name, event, run) => byId(name).addEventListener(event, run);
const button = (properties, ...children) => el('button', { type: 'button', ...properties }, ...children);
const announce = (text) => { byId('live').textContent = text; };

// A name may break after an underscore.
const breakable = (name) => name.split(/(?<=_)(?=.)/).flatMap((part, k) => (k ? [el('wbr'), part] : [part]));
const nameInQuotes = (name) => ['“', ...breakable(name), '”'];

// The kind of an example, by shape and colour.
const marker = (q) => el('span', { class: `marker q-${q}`, 'aria-hidden': 'true', text: '●■▲◆'[q] });

// ---- More than labels: near duplicates, outliers, rare classes, examples that the other split holds too ----

const found = audit.findings;
const byExample = (part, value) => new Map(part ? part.index.map((example, k) => [example, value(k)]) : []);
const firstCopy = byExample(found.duplicates, (k) => found.duplicates.first[k]);
const outlierScore = byExample(found.outliers, (k) => found.outliers.score[k]);
const leakOf = byExample(found.leaks, (k) => ({ id: found.leaks.id[k], label: found.leaks.label[k] }));
const rare = new Set(found.rare?.index);

const copies = new Map([...firstCopy.values()].map((first) => [first, []])); // from the first of each group to all of it
for (const [example, first] of firstCopy) copies.get(first).push(example);
const conflicts = new Set(found.conflicts?.index);
const conflicting = (i) => conflicts.has(i);
const copiesOf = (i) => (firstCopy.has(i) ? copies.get(firstCopy.get(i)).filter((other) => other !== i) : []);

// Groups with different labels first, the copies of one example side by side.
function copiesTogether() {
  const grouped = (a, b) => conflicting(b) - conflicting(a) || firstCopy.get(a) - firstCopy.get(b) || a - b;
  return Uint32Array.from([...[...firstCopy.keys()].sort(grouped), ...suspicion.order.filter((i) => !firstCopy.has(i))]);
}

const findingWords = (i) => [
  firstCopy.has(i) && (conflicting(i) ? 'conflict' : 'copy'), outlierScore.has(i) && 'outlier', leakOf.has(i) && 'in other split',
].filter(Boolean);

// ---- What an example looks like: its thumbnail, its text, or its table row ----

const texts = audit.texts;
const pictureOf = new Map(audit.thumbnails.flat().map(([example, ...picture]) => [example, picture]));
const pictured = audit.thumbnails[0]?.length ?? 0; // examples that have a large picture
const hasContent = Boolean(pictured || texts);

function thumbnail(example) {
  const [width, height, data] = pictureOf.get(example);
  const looks = Math.max(width, height) <= 64 ? 'thumb crisp' : 'thumb';
  return el('img', { width, height, class: looks, alt: `Image ${nameOf(example)}`, src: `data:image/webp;base64,${data}` });
}

const rowOf = (example) => (texts ? texts.rows[example] : null);
const isRow = (example) => Array.isArray(rowOf(example)) && !pictureOf.has(example);

const shown = (value) => (value === null || value === undefined ? '–' : String(value));
const numeric = (value) => value !== '' && value !== null && Number.isFinite(Number(value));
const worded = (value) => (numeric(value) && String(value).includes('.') ? String(Number(Number(value).toPrecision(5))) : shown(value));

// One line of plain text, for the search and beside pictures.
function plainText(example) {
  const row = rowOf(example);
  if (row === null || row === undefined) return '';
  return Array.isArray(row) ? row.map((value, k) => `${texts.keys[k]}: ${shown(value)}`).join(' · ') : row;
}

// `most` limits the fields of a table row: a card shows the first few.
function content(example, most = Infinity) {
  if (pictureOf.has(example)) return thumbnail(example);
  const row = rowOf(example);
  if (Array.isArray(row)) {
    return el('dl', { class: 'fields' }, ...texts.keys.slice(0, most).map((key, k) => el('div', {},
      el('dt', { text: key }), el('dd', { text: worded(row[k]) }))));
  }
  if (row) return el('p', { class: 'text', text: row });
  const missing = `No picture: only the first ${number.format(pictured)} have one, to keep this file small`;
  return el('p', { class: 'nothing', text: pictured ? missing : `Example ${nameOf(example)}` });
}
