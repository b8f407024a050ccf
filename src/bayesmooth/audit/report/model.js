// What the page knows: the audit as columns, what was found, what an example looks like, which examples are listed,
// and what the reviewer decided.

const audit = JSON.parse(document.getElementById('payload').textContent);
const { count, classes, quadrants } = audit;

function unpack(column) {
  if (column === null) return null;
  const bytes = decodeBase64(column.data);
  const view = { Uint8Array, Uint16Array, Uint32Array, Float32Array }[column.type];
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

// ---- Several labels per example: a class is a set of tags, written as one text ----

const { tags } = audit;
const knownClasses = classes.length; // a reviewer may make new sets
const sets = new Map();
function tagsOf(label) {
  if (!sets.has(label)) sets.set(label, new Set(classes[label] === tags.none ? [] : classes[label].split(tags.between)));
  return sets.get(label);
}
const without = (label, other) => [...tagsOf(label)].filter((tag) => !tagsOf(other).has(tag));
const changeWords = (from, to) => [...without(to, from).map((tag) => `+${tag}`), ...without(from, to).map((tag) => `−${tag}`)].join(' ');
const worstTag = (i) => tags.names[columns.worst[i]];

// The number of a set; that of a new one comes after all others.
function numberOf(chosen) {
  const text = tags.names.filter((tag) => chosen.has(tag)).join(tags.between) || tags.none;
  const at = classes.indexOf(text);
  return at >= 0 ? at : classes.push(text) - 1;
}

// What the reader filters by: a class, or a tag that an example has, and one that is to change.
const options = tags ? tags.names : classes;
const hasLabel = (i, k) => (tags ? tagsOf(given[i]).has(options[k]) : given[i] === k);
const looksLike = (i, k) => (tags ? tagsOf(given[i]).has(options[k]) !== tagsOf(suggested[i]).has(options[k]) : suggested[i] === k);

const CLEAR = 0, AMBIGUOUS = 1, MISLABELLED = 2, HARD = 3; // positions in quadrants
const QUADRANT_WORDS = tags ? ['The model agrees with the tags.', 'The model agrees with the tags, but is unsure of one.',
  'The model would change a tag.', 'The model would change a tag, but is not sure.'] : [
  'The model agrees with the label.',
  'The model agrees with the label, but another class is nearly as likely.',
  'The model prefers another class.',
  'The model prefers another class, but not by much.',
];
const contradicted = (i) => quadrant[i] === MISLABELLED || quadrant[i] === HARD;

const idOf = (i) => (audit.ids ? audit.ids[i] : String(i));
const givenProbability = (i) => columns.givenProbability[i] / 65535;
const suggestedProbability = (i) => columns.suggestedProbability[i] / 65535;

// The most probable classes of an example, [class, probability], as far as they are known.
const likely = audit.likeliest && { each: audit.likeliest.each, classes: unpack(audit.likeliest.classes), shares: unpack(audit.likeliest.shares) };
function likeliest(i) {
  if (!likely) return [];
  return Array.from({ length: likely.each }, (_, k) => i * likely.each + k).map((k) => [likely.classes[k], likely.shares[k] / 65535]);
}

// The nearest examples that carry the given label, and those that carry the suggested one.
const similar = new Map((audit.similar?.examples ?? []).map((example, k) => [example,
  { given: audit.similar.given[k].filter((i) => i >= 0), suggested: audit.similar.suggested[k].filter((i) => i >= 0) }]));

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

const contradictedCount = quadrantCounts[MISLABELLED] + quadrantCounts[HARD];

const classCounts = classes.map(() => 0);
for (const label of given) classCounts[label]++;

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

// The name of a class, which may break after an underscore.
const breakable = (name) => name.split(/(?<=_)(?=.)/).flatMap((part, k) => (k ? [el('wbr'), part] : [part]));

const byId = (name) => document.getElementById(name);
const announce = (text) => { byId('live').textContent = text; };

// ---- More than labels: near duplicates, outliers, rare classes, examples that the other split holds too ----

const found = audit.findings;
const pairUp = (part, values) => new Map(part ? part.index.map((example, k) => [example, values(k)]) : []);
const firstCopy = pairUp(found.duplicates, (k) => found.duplicates.first[k]);
const outlierScore = pairUp(found.outliers, (k) => found.outliers.score[k]);
const leakOf = pairUp(found.leaks, (k) => ({ id: found.leaks.id[k], label: found.leaks.label[k] }));
const rareClass = new Set(found.rare ?? []);

const copies = new Map(); // from the first of each group to all of it
for (const [example, first] of firstCopy) copies.set(first, [...(copies.get(first) ?? []), example]);
const mixed = new Set([...copies].filter(([, group]) => group.some((i) => given[i] !== given[group[0]])).map(([first]) => first));
const conflicting = (i) => mixed.has(firstCopy.get(i));
const copiesOf = (i) => (firstCopy.has(i) ? copies.get(firstCopy.get(i)).filter((other) => other !== i) : []);

// Groups with different labels first, the copies of one example side by side.
function copiesTogether() {
  const group = [...firstCopy.keys()].sort((a, b) => conflicting(b) - conflicting(a) || firstCopy.get(a) - firstCopy.get(b) || a - b);
  return Uint32Array.from([...group, ...bySuspicion.order.filter((i) => !firstCopy.has(i))]);
}

function findingWords(example) {
  const words = [];
  if (firstCopy.has(example)) words.push(conflicting(example) ? 'conflict' : 'copy');
  if (outlierScore.has(example)) words.push('outlier');
  if (leakOf.has(example)) words.push('in other split');
  return words;
}

// ---- What an example looks like: its thumbnail, its text, or its table row ----

const texts = audit.texts;
const tileOf = new Map(audit.thumbnails.flatMap((sheets) => sheets.index.map((example, tile) => [example, { sheets, tile }])).reverse());
const pictured = audit.thumbnails[0]?.index.length ?? 0; // examples that have a large picture
const sheetImages = new Map();

// A sheet is decoded when one of its tiles is first seen.
function sheetImage(sheets, number) {
  const data = sheets.sheets[number];
  if (!sheetImages.has(data)) {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([decodeBase64(data)], { type: sheets.type }));
    sheetImages.set(data, image.decode().then(() => image));
  }
  return sheetImages.get(data);
}

function thumbnail(example) {
  const { sheets, tile } = tileOf.get(example);
  const [width, height] = sheets.sizes?.[tile] ?? [sheets.tile, sheets.tile];
  const canvas = el('canvas', { width, height, role: 'img', class: sheets.tile <= 64 ? 'thumb crisp' : 'thumb', 'aria-label': `Image ${idOf(example)}` });
  const place = tile % sheets.perSheet;
  const x = (place % sheets.columns) * sheets.tile + Math.floor((sheets.tile - width) / 2);
  const y = Math.floor(place / sheets.columns) * sheets.tile + Math.floor((sheets.tile - height) / 2);
  sheetImage(sheets, Math.floor(tile / sheets.perSheet)).then((image) => canvas.getContext('2d').drawImage(image, x, y, width, height, 0, 0, width, height));
  return canvas;
}

function rowOf(example) {
  return texts ? texts.rows[example] : null;
}

// What is usual in column k for the class of an example: [low, high], a list of categories, or null; and whether its value is.
const usualFor = (example, k) => audit.usual?.[given[example]]?.[k] ?? null;

function unusual(example, k) {
  const usual = usualFor(example, k);
  const value = rowOf(example)[k];
  if (!usual || value === null || value === '') return false;
  return typeof usual[0] === 'number' ? Number(value) < usual[0] || Number(value) > usual[1] : !usual.includes(String(value));
}

function usualWords(example, k) {
  const usual = usualFor(example, k);
  const range = typeof usual[0] === 'number' ? `${brief(usual[0])} to ${brief(usual[1])}` : usual.join(', ');
  return `Usual for “${classes[given[example]]}”: ${range || 'none'}`;
}

// The columns of a table row, those with unusual values first.
const columnsOf = (example) => texts.keys.map((_, k) => k).sort((a, b) => unusual(example, b) - unusual(example, a) || a - b);

const shown = (value) => (value === null || value === undefined ? '–' : String(value));

// One line of plain text, for the table and for the search.
function plainText(example) {
  const row = rowOf(example);
  if (row === null || row === undefined) return '';
  return Array.isArray(row) ? row.map((value, k) => `${texts.keys[k]}: ${shown(value)}`).join(' · ') : row;
}

const numeric = (value) => value !== '' && value !== null && Number.isFinite(Number(value));
const worded = (value) => (numeric(value) && String(value).includes('.') ? String(Number(Number(value).toPrecision(5))) : shown(value));

// `most` limits the fields of a table row: a card shows the first few.
function content(example, most = Infinity) {
  if (tileOf.has(example)) return thumbnail(example);
  const row = rowOf(example);
  if (Array.isArray(row)) {
    const fields = columnsOf(example).slice(0, most).map((k) => el('div', unusual(example, k) ? { class: 'unusual', title: usualWords(example, k) } : {},
      el('dt', { text: texts.keys[k] }), el('dd', { text: worded(row[k]) })));
    return el('dl', { class: 'fields' }, ...fields);
  }
  if (row) return el('p', { class: 'text', text: row });
  return el('p', { class: 'nothing', text: pictured ? `No picture: only the first ${number.format(pictured)} have one, to keep this file small` : `Example ${idOf(example)}` });
}

const hasContent = Boolean(pictured || texts);

// ---- Which examples are in the list, and in which order ----

// What the reader can ask to see, one at a time; `words` explain it.
const SHOWS = {
  contradicted: { label: 'Contradicted', words: 'The model prefers another label.', count: contradictedCount, test: contradicted },
  ...Object.fromEntries([MISLABELLED, HARD, AMBIGUOUS, CLEAR].map((q) => [quadrants[q],
    { label: capital(quadrants[q]), words: QUADRANT_WORDS[q], quadrant: q, count: quadrantCounts[q], test: (i) => quadrant[i] === q }])),
  all: { label: 'All', words: 'Every example.', count, test: () => true },
  conflicts: { label: 'Conflicting copies', words: 'Near duplicates that do not carry the same label.', sort: 'copies', count: [...firstCopy.keys()].filter(conflicting).length, test: conflicting },
  duplicates: { label: 'Near duplicates', words: 'Examples that are nearly the same, and their copies.', sort: 'copies', count: firstCopy.size, test: (i) => firstCopy.has(i) },
  outliers: { label: 'Outliers', words: 'Far from every other example.', sort: 'outliers', count: outlierScore.size, test: (i) => outlierScore.has(i) },
  rare: { label: 'Rare classes', words: 'Their class has less than a tenth of an even share.', count: given.filter((label) => rareClass.has(label)).length, test: (i) => rareClass.has(given[i]) },
  leaks: { label: 'In the other split', words: 'The other split holds a near duplicate.', count: leakOf.size, test: (i) => leakOf.has(i) },
};
const firstShow = contradictedCount ? 'contradicted' : 'all';
const NO_FILTER = { search: '', given: -1, suggested: -1, state: 'all', region: null };
const filters = { show: firstShow, ...NO_FILTER };
const sorting = { key: 'disagreement', reversed: false };

const SORTS = {
  disagreement: { label: 'Most suspicious', order: () => bySuspicion.order },
  ambiguity: { label: 'Most ambiguous', order: () => byAmbiguity.order },
  probability: { label: 'Surest suggestion', order: () => ranking(columns.suggestedProbability).order },
  given: { label: 'Given label', rising: true, order: () => ranking(Float32Array.from(given, (label) => -label)).order },
  suggested: { label: 'Suggested label', rising: true, order: () => ranking(Float32Array.from(suggested, (label) => -label)).order },
  ...(firstCopy.size ? { copies: { label: 'Copies together', order: copiesTogether } } : {}),
  ...(outlierScore.size ? { outliers: { label: 'Farthest outlier', order: () => ranking(Float32Array.from(given, (_, i) => outlierScore.get(i) ?? 0)).order } } : {}),
  position: { label: 'Data set order', rising: true, order: () => Uint32Array.from({ length: count }, (_, i) => i) },
};
const rising = () => Boolean(SORTS[sorting.key].rising) !== sorting.reversed;
const orders = new Map();

function currentOrder() {
  if (!orders.has(sorting.key)) orders.set(sorting.key, SORTS[sorting.key].order());
  return orders.get(sorting.key);
}

let haystack = null;
function searchable(example) {
  haystack ??= new Array(count);
  haystack[example] ??= [idOf(example), classes[given[example]], classes[suggested[example]], plainText(example)].join('\n').toLowerCase();
  return haystack[example];
}

const STATES = {
  all: { label: 'All', test: () => true },
  open: { label: 'Not reviewed', test: (i) => !decisions.has(i) },
  done: { label: 'Reviewed', test: (i) => decisions.has(i) },
  keep: { label: 'Keep', test: (i) => decisions.get(i) === 'keep' },
  relabel: { label: 'Relabel', test: (i) => typeof decisions.get(i) === 'number' },
  ambiguous: { label: 'Ambiguous', test: (i) => decisions.get(i) === 'ambiguous' },
  skip: { label: 'Skip', test: (i) => decisions.get(i) === 'skip' },
};

function passes(i) {
  return SHOWS[filters.show].test(i)
    && (filters.given < 0 || hasLabel(i, filters.given))
    && (filters.suggested < 0 || looksLike(i, filters.suggested))
    && (filters.region === null || filters.region[i] === 1)
    && (filters.state === 'all' || STATES[filters.state].test(i))
    && (filters.search === '' || searchable(i).includes(filters.search));
}

function filtered() {
  const list = currentOrder().filter(passes);
  return sorting.reversed ? list.reverse() : list;
}

const anyFilter = () => Object.keys(NO_FILTER).some((key) => filters[key] !== NO_FILTER[key]);

// The filters in words, for the line above the list.
function filterWords() {
  const words = filters.show === 'all' ? [] : [SHOWS[filters.show].label.toLowerCase()];
  if (filters.given >= 0) words.push(`${tags ? 'with' : 'labelled'} “${options[filters.given]}”`);
  if (filters.suggested >= 0) words.push(`${tags ? 'to change' : 'looks like'} “${options[filters.suggested]}”`);
  if (filters.state !== 'all') words.push(STATES[filters.state].label.toLowerCase());
  if (filters.region) words.push('inside the selected region');
  if (filters.search) words.push(`matching “${filters.search}”`);
  return words.join(', ');
}

// ---- What the reviewer decided: kept across reloads, undone, written to and read from CSV ----

// A decision is 'keep', 'ambiguous', 'skip', or the number of the new class.
const decisions = new Map();
const steps = []; // to undo, each: [[example, its decision before], …]
const STORE = `bayesmooth-audit-${audit.key}`;
let storageWorks = true;
let unsaved = false;

function store() {
  unsaved = true;
  try {
    localStorage.setItem(STORE, JSON.stringify({ decisions: [...decisions], steps, sets: classes.slice(knownClasses) }));
  } catch {
    storageWorks = false; // private window, or full: the page goes on, and says so
  }
}

function restore() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE) ?? '{}');
    classes.push(...(kept.sets ?? []));
    for (const [example, decision] of kept.decisions ?? []) decisions.set(example, decision);
    steps.push(...(kept.steps ?? []));
  } catch {
    storageWorks = false;
  }
}

function assign(example, decision) {
  if (decision === undefined || decision === null) decisions.delete(example); // JSON makes null of undefined
  else decisions.set(example, decision);
}

// Changes are [example, decision] pairs; they are undone together.
function decide(changes) {
  steps.push(changes.map(([example]) => [example, decisions.get(example)]));
  changes.forEach(([example, decision]) => assign(example, decision));
  store();
}

function undo() {
  const step = steps.pop();
  if (!step) return null;
  step.forEach(([example, before]) => assign(example, before));
  store();
  return step[0][0];
}

// ---- What the decisions say about the labels that nobody has looked at ----

const FEW = 20; // decisions: what is said of the last, and from how many on the rate is estimated

// The labels that were judged one by one, in this order; skipped ones, and those accepted in bulk, were not looked at.
function judged() {
  const examples = steps.filter((step) => step.length === 1).map(([[example]]) => example);
  return [...new Set(examples.reverse())].reverse().filter((i) => decisions.has(i) && decisions.get(i) !== 'skip');
}
const foundWrong = (i) => typeof decisions.get(i) === 'number';

// Wilson's interval of a share that was seen in `size` examples, at 95 %.
function wilson(share, size) {
  const z = 1.96 ** 2 / size;
  const half = 1.96 * Math.sqrt((share * (1 - share)) / size + z / (4 * size));
  return [Math.max(0, (share + z / 2 - half) / (1 + z)), Math.min(1, (share + z / 2 + half) / (1 + z))];
}

// The share of wrong labels, [low, high], from the decisions: audit/rates.py has the same, with its reasons.
function reviewedRate() {
  const seen = new Set(judged());
  if (seen.size < FEW) return null;
  const ranks = [...bySuspicion.order.keys()].filter((r) => seen.has(bySuspicion.order[r]));
  const blocks = Math.floor(ranks.length / FEW);
  const long = ranks.length % blocks; // as numpy.array_split: the first blocks have one more
  const least = Math.floor(ranks.length / blocks);
  let [start, middle, variance, above, at] = [0, 0, 0, 0, 0];
  for (let k = 0; k < blocks; k++) {
    const block = ranks.slice(at, at += least + (k < long));
    const last = block.at(-1);
    const hits = block.filter((r) => foundWrong(bySuspicion.order[r])).length;
    const share = (hits + 0.5) / (block.length + 1);
    let rest = last + 1 - start - block.length;
    let tail = count - last - 1;
    if (k === blocks - 1) {
      if (tail <= last + 1 - start) { rest += tail; tail = 0; }
      above = tail * wilson(hits / block.length, block.length)[1];
    }
    middle += hits + rest * share;
    variance += share * (1 - share) * (rest ** 2 / block.length + rest);
    start = last + 1;
  }
  const half = 1.96 * Math.sqrt(variance);
  return [Math.max(middle - half, [...seen].filter(foundWrong).length) / count, Math.min(middle + half + above, count) / count];
}

function hitWords() {
  const last = judged().slice(-FEW);
  if (last.length < 5) return '';
  const wrong = last.filter(foundWrong).length;
  const words = [`Of the last ${last.length} you looked at, ${wrong} ${wrong === 1 ? 'was' : 'were'} wrong.`];
  const rate = reviewedRate();
  if (rate) words.push(`By your decisions, ${percent(rate[0])} to ${percent(rate[1])} of all ${tags ? 'examples have a wrong tag' : 'labels are wrong'}.`);
  if (last.length === FEW && wrong <= 1) words.push('Looking further hardly pays.');
  return words.join(' ');
}

function decisionName(decision) {
  return typeof decision === 'number' ? 'relabel' : decision;
}

function decisionWords(decision) {
  return typeof decision === 'number' ? `${tags ? 'Tags' : 'Relabel'}: ${classes[decision]}` : capital(decision);
}

// A spreadsheet runs a cell that begins so: an apostrophe in front prevents it, and is taken off when the file is read.
const formula = /^['=+\-@\t\r]/;
const plainNumber = /^[+-]?[\d.,]+([eE][+-]?\d+)?$/;
const guarded = (text) => (formula.test(text) && !plainNumber.test(text) ? `'${text}` : text);
const unguarded = (text) => (text.startsWith("'") ? text.slice(1) : text);

// Every field is quoted, so that ids come back exactly as they were.
const quoted = (field) => `"${guarded(field).replaceAll('"', '""')}"`;

function toCsv() {
  const lines = ['id,given,decision,new_label'];
  for (const example of [...decisions.keys()].sort((a, b) => a - b)) {
    const decision = decisions.get(example);
    const fields = [idOf(example), classes[given[example]], decisionName(decision), typeof decision === 'number' ? classes[decision] : ''];
    lines.push(fields.map(quoted).join(','));
  }
  return `${lines.join('\n')}\n`;
}

function parseCsv(text) {
  const rows = [];
  const field = /(?:"((?:[^"]|"")*)"|([^,\r\n]*))(,|\r\n|\n|\r|$)/y;
  field.lastIndex = text.startsWith('\ufeff') ? 1 : 0;
  let row = [];
  while (field.lastIndex < text.length) {
    const match = field.exec(text);
    if (!match) return null;
    row.push(match[1] !== undefined ? match[1].replaceAll('""', '"') : match[2]);
    if (match[3] === ',') continue;
    rows.push(row);
    row = [];
  }
  return rows;
}

// A row becomes [example, decision], or null where this audit knows no such example, label or decision.
function readRow([id, givenName, name, newLabel], exampleOf, classOf) {
  const example = exampleOf.get(id);
  if (example === undefined || classes[given[example]] !== givenName) return null;
  if (name === 'relabel') {
    const label = tags ? readSet(newLabel) : classOf.get(newLabel);
    return label === undefined ? null : [example, label];
  }
  return ['keep', 'ambiguous', 'skip'].includes(name) ? [example, name] : null;
}

function readSet(text) {
  const chosen = text === tags.none ? [] : text.split(tags.between);
  return chosen.every((tag) => tags.names.includes(tag)) ? numberOf(new Set(chosen)) : undefined;
}

// Returns what to tell the reviewer.
function loadCsv(text) {
  const rows = parseCsv(text);
  if (!rows || (rows[0] ?? []).join() !== 'id,given,decision,new_label') {
    return 'This is not a decisions file: its first line must be id,given,decision,new_label.';
  }
  const exampleOf = new Map(Array.from({ length: count }, (_, i) => [idOf(i), i]));
  const classOf = new Map(classes.map((name, k) => [name, k]));
  const read = rows.slice(1).filter((row) => row.length > 1).map((row) => readRow(row.map(unguarded), exampleOf, classOf));
  const known = read.filter((change) => change !== null);
  if (known.length) decide(known);
  const lost = read.length - known.length;
  return `Loaded ${number.format(known.length)} decisions.${lost ? ` ${number.format(lost)} rows do not belong to this audit.` : ''}`;
}

function download() {
  const link = el('a', { href: URL.createObjectURL(new Blob([toCsv()], { type: 'text/csv;charset=utf-8' })), download: 'decisions.csv' });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  unsaved = false;
}

addEventListener('beforeunload', (event) => {
  if (!storageWorks && unsaved && decisions.size) event.preventDefault();
});
