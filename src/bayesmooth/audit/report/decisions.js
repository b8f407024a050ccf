// What the reviewer decided: kept across reloads, undone, written to and read from CSV.

// A decision is 'keep', 'ambiguous', 'skip', or the number of the new class.
const decisions = new Map();
const steps = []; // to undo, each: [[example, its decision before], …]
const STORE = `bayesmooth-audit-${audit.key}`;
let storageWorks = true;
let unsaved = false;

function store() {
  unsaved = true;
  try {
    localStorage.setItem(STORE, JSON.stringify([...decisions]));
  } catch {
    storageWorks = false; // private window, or full: the page goes on, and says so
  }
}

function restore() {
  try {
    for (const [example, decision] of JSON.parse(localStorage.getItem(STORE) ?? '[]')) decisions.set(example, decision);
  } catch {
    storageWorks = false;
  }
}

function assign(example, decision) {
  if (decision === undefined) decisions.delete(example);
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

function decisionName(decision) {
  return typeof decision === 'number' ? 'relabel' : decision;
}

function decisionWords(decision) {
  return typeof decision === 'number' ? `Relabel: ${classes[decision]}` : capital(decision);
}

// Every field is quoted and nothing else is done to it, so that ids come back exactly as they were.
const quoted = (field) => `"${field.replaceAll('"', '""')}"`;

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
  if (name === 'relabel') return classOf.has(newLabel) ? [example, classOf.get(newLabel)] : null;
  return ['keep', 'ambiguous', 'skip'].includes(name) ? [example, name] : null;
}

// Returns what to tell the reviewer.
function loadCsv(text) {
  const rows = parseCsv(text);
  if (!rows || (rows[0] ?? []).join() !== 'id,given,decision,new_label') {
    return 'This is not a decisions file: its first line must be id,given,decision,new_label.';
  }
  const exampleOf = new Map(Array.from({ length: count }, (_, i) => [idOf(i), i]));
  const classOf = new Map(classes.map((name, k) => [name, k]));
  const read = rows.slice(1).filter((row) => row.length > 1).map((row) => readRow(row, exampleOf, classOf));
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
