// Given × suggested: how often each label looks like another one.

const MOST_CLASSES = 16; // of more, the most confused are shown: a larger table cannot be read
const MOST_PAIRS = 6;

const pairCounts = new Map();
for (let i = 0; i < count; i++) {
  const pair = given[i] * classes.length + suggested[i];
  pairCounts.set(pair, (pairCounts.get(pair) ?? 0) + 1);
}
const pairCount = (row, column) => pairCounts.get(row * classes.length + column) ?? 0;
const confusions = [...pairCounts]
  .map(([pair, times]) => ({ row: Math.floor(pair / classes.length), column: pair % classes.length, times }))
  .filter(({ row, column }) => row !== column)
  .sort((a, b) => b.times - a.times || a.row - b.row);
const largest = confusions.length ? confusions[0].times : 1;

function matrixClasses() {
  const all = classes.map((_, k) => k);
  if (all.length <= MOST_CLASSES) return all;
  const errors = new Float64Array(classes.length);
  for (const { row, column, times } of confusions) { errors[row] += times; errors[column] += times; }
  return all.sort((a, b) => errors[b] - errors[a] || a - b).slice(0, MOST_CLASSES).sort((a, b) => a - b);
}

function choosePair(row, column) {
  const chosen = filters.given === row && filters.suggested === column;
  change(() => Object.assign(filters, chosen ? { given: -1, suggested: -1 } : { given: row, suggested: column }));
}

function matrixCell(row, column) {
  const times = pairCount(row, column);
  const same = row === column;
  const words = same ? `labelled ${classes[row]}, and looks it: ${times}` : `labelled ${classes[row]}, looks like ${classes[column]}: ${times}`;
  const button = el('button', {
    type: 'button', class: same ? 'cell same' : 'cell', title: words, 'aria-label': words, tabindex: -1,
    'data-row': row, 'data-column': column, text: times === 0 ? '' : times < 10000 ? String(times) : compact.format(times), onclick: () => choosePair(row, column),
  });
  if (!same && times) button.style.setProperty('--strength', `${Math.round(8 + 67 * (times / largest) ** 0.75)}%`);
  return el('td', {}, button);
}

function buildMatrix() {
  const some = matrixClasses();
  const heading = (k, scope) => el('th', { scope, title: classes[k] }, el('span', { text: classes[k] }));
  const longest = Math.max(...some.map((k) => classes[k].length));
  const looks = ['matrix', some.length > 11 ? 'dense' : some.length < 6 ? 'roomy' : '', longest < 4 ? 'short' : some.length > 5 ? 'upright' : ''];
  const table = el('table', { class: looks.join(' ') },
    el('caption', { text: 'Rows: the given label. Columns: the label it looks like.' }),
    el('thead', {}, el('tr', {}, el('td', {}), ...some.map((k) => heading(k, 'col')))),
    el('tbody', {}, ...some.map((row) => el('tr', {}, heading(row, 'row'), ...some.map((column) => matrixCell(row, column))))));
  byId('matrix').replaceChildren(table);
  byId('matrix-hint').textContent = (some.length < classes.length ? `The ${some.length} most confused of ${classes.length} classes. ` : '')
    + 'Rows: the given label; columns: what it looks like. Click a cell for its examples.';
  const cells = [...table.querySelectorAll('button')];
  cells[0].tabIndex = 0;
  table.addEventListener('keydown', (event) => moveInMatrix(event, cells, some.length));
}

// One stop for the Tab key, arrows inside.
function moveInMatrix(event, cells, width) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
  const target = cells[cells.indexOf(event.target) + step];
  if (!target) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function buildPairs() {
  byId('pairs').replaceChildren(...confusions.slice(0, MOST_PAIRS).map(({ row, column, times }) => {
    const bar = el('i', { 'aria-hidden': 'true' });
    bar.style.width = `${(100 * times) / largest}%`;
    return el('button', { type: 'button', class: 'pair', 'data-row': row, 'data-column': column, onclick: () => choosePair(row, column) },
      el('span', { class: 'pair-names' }, el('span', { text: classes[row] }), ' → ', el('span', { text: classes[column] })),
      el('span', { class: 'pair-bar' }, bar), el('span', { class: 'pair-count', text: number.format(times) }));
  }));
  byId('pairs').classList.toggle('long', confusions.slice(0, MOST_PAIRS).some(({ row, column }) => classes[row].length + classes[column].length > 24));
  byId('pairs-title').hidden = confusions.length === 0;
}

function markMatrix() {
  for (const node of document.querySelectorAll('#matrix button, #pairs button')) {
    node.setAttribute('aria-pressed', Number(node.dataset.row) === filters.given && Number(node.dataset.column) === filters.suggested);
  }
}
