// What the reviewer decided: kept across reloads and shared by all tabs, undone, written to and read from CSV.
// Every change ends in `decisionsChanged`, which page.js defines.

const earlier = audit.review?.decided ?? []; // [example, its label then, decision]: the audit was made with these
const givenBefore = new Map(earlier);
// From an example to { name: 'keep', 'relabel', 'remove' or 'skip', label: the new one or '' }.
let decisions = new Map(earlier.map(([i, , name]) => [i, { name, label: name === 'relabel' ? givenName(i) : '' }]));
let steps = []; // to undo, each: [[example, its decision before, or null], …]
const STORE = `bayesmooth-audit-${audit.key}`;
let storageWorks = true;
let unsaved = false;
let downloads = 0;

const decision = (name, text = '') => ({ name, label: text });

// Another tab of this page may have stored more since.
function readStore() {
  if (!storageWorks) return;
  try {
    const text = localStorage.getItem(STORE);
    if (text === null) return;
    const kept = JSON.parse(text);
    decisions = new Map(kept.decisions);
    ({ steps, downloads } = kept);
  } catch {
    storageWorks = false; // a private window: the page goes on, and says so
  }
}

function writeStore() {
  try {
    localStorage.setItem(STORE, JSON.stringify({ decisions: [...decisions], steps, downloads }));
  } catch {
    storageWorks = false; // or full
  }
}

addEventListener('storage', (event) => {
  if (event.key !== STORE || event.newValue === null) return;
  readStore();
  decisionsChanged();
});

function assign(changes) {
  for (const [example, value] of changes) {
    if (value === null) decisions.delete(example);
    else decisions.set(example, value);
  }
  unsaved = true;
  writeStore();
  decisionsChanged();
}

// Changes are [example, decision] pairs; they are undone together.
function decide(changes) {
  readStore();
  steps.push(changes.map(([example]) => [example, decisions.get(example) ?? null]));
  assign(changes);
}

// Returns the first example that was decided on, or null.
function undo() {
  readStore();
  const step = steps.pop();
  if (!step) return null;
  assign(step);
  return step[0][0];
}

const BADGES = { keep: 'Kept', relabel: 'Relabelled', remove: 'Removed', skip: 'Skipped' };
const decisionWords = ({ name, label: text }) => (text ? `${BADGES[name]}: ${text}` : BADGES[name]);

// ---- The file: audit/decisions.py reads it too ----

// A spreadsheet runs a cell that begins so: an apostrophe in front prevents it, and is taken off when the file is read.
const formula = /^['=+\-@\t\r]/;
const plainNumber = /^[+-]?[\d.,]+([eE][+-]?\d+)?$/;
const guarded = (text) => (formula.test(text) && !plainNumber.test(text) ? `'${text}` : text);
const unguarded = (text) => (text.startsWith("'") ? text.slice(1) : text);

// Every field is quoted, so that ids come back exactly as they were.
const quoted = (field) => `"${guarded(field).replaceAll('"', '""')}"`;

// The label that the data has, and the decision on it: the page shows labels after earlier decisions.
function onData(example, { name, label: text }) {
  const [from, to] = [givenBefore.get(example) ?? givenName(example), text || givenName(example)];
  if (name === 'remove' || name === 'skip') return [from, name, ''];
  return from === to ? [from, 'keep', ''] : [from, 'relabel', to];
}

// A part of the sample is random only if nobody chose it, as in a list of suspicious labels: it tells a share when all is decided.
function toCsv() {
  const drawn = (example) => String((queueDone() && drawnAs(example)) || '');
  const rows = [...decisions].sort(([a], [b]) => a - b)
    .map(([example, decided]) => [idOf(example), ...onData(example, decided), drawn(example)].map(quoted).join(','));
  return [audit.decisions.columns.join(), ...rows, ''].join('\n');
}

function parseCsv(text) {
  const rows = [[]];
  const field = /(?:"((?:[^"]|"")*)"|((?!")[^,\r\n]*))(,|\r\n|\n|\r|$)/y;
  field.lastIndex = text.startsWith('\ufeff') ? 1 : 0;
  for (let end = ','; end !== ''; ) {
    const match = field.exec(text);
    if (!match) return null;
    end = match[3];
    rows.at(-1).push(match[1]?.replaceAll('""', '"') ?? match[2]);
    if (end && end !== ',') rows.push([]);
  }
  return rows.filter((row) => row.length > 1 || row[0]);
}

// A row becomes [example, decision], or null where this audit knows no such example, label or decision.
function readRow([id, from, name, text], exampleOf) {
  const example = exampleOf.get(id);
  if (example === undefined || (givenBefore.get(example) ?? givenName(example)) !== from || !audit.decisions.names.includes(name)) return null;
  if (name === 'remove' || name === 'skip') return [example, decision(name)];
  const to = name === 'keep' ? from : label.read(text);
  return to === null ? null : [example, to === givenName(example) ? decision('keep') : decision('relabel', to)];
}

// Returns what to tell the reviewer.
function loadCsv(text) {
  const rows = parseCsv(text);
  const known4 = audit.decisions.columns.slice(0, 4).join(); // a file of before had no column `drawn`
  if (![known4, audit.decisions.columns.join()].includes(rows?.[0]?.join())) {
    return `This is not a decisions file: its first line must be ${audit.decisions.columns.join()}.`;
  }
  const exampleOf = new Map(Array.from({ length: count }, (_, i) => [idOf(i), i]));
  const read = rows.slice(1).map((row) => readRow(row.map(unguarded), exampleOf));
  const known = read.filter((change) => change !== null);
  if (known.length) decide(known);
  const lost = read.length - known.length;
  return `Loaded ${plural(known.length, 'decision')}.${lost ? ` ${plural(lost, 'row does', 'rows do')} not belong to this audit.` : ''}`;
}

// Returns the name of the file: a new one each time, as browsers do not overwrite.
function download() {
  readStore();
  downloads += 1;
  writeStore();
  const name = downloads === 1 ? 'decisions.csv' : `decisions-${downloads}.csv`;
  const link = el('a', { href: URL.createObjectURL(new Blob([toCsv()], { type: 'text/csv;charset=utf-8' })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  unsaved = false;
  return name;
}

addEventListener('beforeunload', (event) => {
  if (!storageWorks && unsaved && decisions.size) event.preventDefault();
});
