// The whole page: one state, drawn again after every change.

function change(edit) {
  const kept = list.items.length ? currentExample() : -1;
  edit();
  list.items = filtered();
  list.current = Math.max(0, list.items.indexOf(kept));
  scroller.scrollTop = 0;
  drawAll();
  revealCurrent();
}

function drawAll() {
  drawControls();
  drawScatter(list.items);
  markMatrix();
  buildTableHead();
  drawList();
  drawDetail();
  drawProgress();
}

function moveTo(position) {
  if (!list.items.length) return;
  list.current = Math.max(0, Math.min(position, list.items.length - 1));
  revealCurrent();
  drawList();
  drawDetail();
  drawOver();
}

function showExample(example) {
  const position = list.items.indexOf(example);
  if (position < 0) change(() => clearFilters());
  moveTo(position < 0 ? list.items.indexOf(example) : position);
  if (detail.getBoundingClientRect().top > innerHeight - 200) byId('review').scrollIntoView({ behavior: 'auto', block: 'start' });
}

// A decision on the current example, then on to the next one.
function review(decision) {
  const example = currentExample();
  decide([[example, decision]]);
  const before = list.items.length;
  byId('notice').hidden = true;
  refilter();
  moveTo(list.items.length < before ? list.current : list.current + 1);
  afterDecision();
  announce(`${idOf(example)}: ${decisionWords(decision)}. ${byId('progress-text').textContent}`);
}

function relabel(label = suggested[currentExample()]) {
  if (label !== given[currentExample()]) review(label);
  else if (label === suggested[currentExample()]) openChooser();
  else review('keep');
}

function undoLast() {
  const example = undo();
  if (example === null) return;
  refilter();
  const position = list.items.indexOf(example);
  if (position >= 0) moveTo(position);
  else notice(`Undone for ${idOf(example)}, which is not in this list.`);
  afterDecision();
  announce(`Undone: ${idOf(example)}.`);
}

// A decision moves examples in or out of the list only where the list is filtered by decision.
function refilter() {
  if (filters.state === 'all') return;
  list.items = filtered();
  drawScatter(list.items);
}

function afterDecision() {
  if (!list.items.length) { drawList(); drawDetail(); }
  drawProgress();
}

function drawProgress() {
  let done = 0;
  for (const i of list.items) if (decisions.has(i)) done++;
  const total = list.items.length;
  const progress = byId('progress');
  progress.setAttribute('aria-valuemax', total);
  progress.setAttribute('aria-valuenow', done);
  progress.firstElementChild.style.width = `${total ? (100 * done) / total : 0}%`;
  byId('progress-text').textContent = `${number.format(done)} of ${number.format(total)} reviewed`;
  byId('undo').disabled = steps.length === 0;
  byId('save').disabled = decisions.size === 0;
  byId('count').textContent = anyFilter() ? `${number.format(total)} of ${number.format(count)} examples: ${filterWords()}` : `All ${number.format(count)} examples`;
  byId('clear').hidden = !anyFilter();
  if (!storageWorks) notice('This browser keeps nothing for this file: download your decisions before you close it.');
}

function notice(text) {
  byId('notice').hidden = false;
  byId('notice').textContent = text;
}

function drawControls() {
  for (const [name, key] of [['filter-quadrant', 'quadrant'], ['filter-given', 'given'], ['filter-suggested', 'suggested'], ['filter-state', 'state']]) byId(name).value = filters[key];
  byId('sort').value = sorting.key;
  byId('direction').textContent = rising() ? '↑' : '↓';
  byId('direction').setAttribute('aria-pressed', String(sorting.reversed));
  if (byId('search').value.trim().toLowerCase() !== filters.search) byId('search').value = filters.search;
  for (const view of ['gallery', 'table']) byId(`view-${view}`).setAttribute('aria-pressed', String(list.view === view));
  for (const mode of ['score', 'rank']) byId(`scale-${mode}`).setAttribute('aria-pressed', String(plot.mode === mode));
  [...byId('quadrants').children].forEach((chip) => chip.setAttribute('aria-pressed', String(Number(chip.dataset.quadrant) === filters.quadrant)));
}

function fill(select, entries) {
  byId(select).replaceChildren(...entries.map(([value, text]) => el('option', { value: String(value), text })));
}

function buildControls() {
  const any = (words, names) => [[-1, words], ...names.map((name, k) => [k, name])];
  fill('filter-quadrant', any('All', [...quadrants, 'contradicted'].map(capital)));
  fill('filter-given', any('Any', classes));
  fill('filter-suggested', any('Any', classes));
  fill('filter-state', Object.entries(STATES).map(([key, { label }]) => [key, label]));
  fill('sort', Object.entries(SORTS).map(([key, { label }]) => [key, label]));
  for (const key of ['quadrant', 'given', 'suggested']) byId(`filter-${key}`).addEventListener('change', (event) => change(() => { filters[key] = Number(event.target.value); }));
  byId('filter-state').addEventListener('change', (event) => change(() => { filters.state = event.target.value; }));
  byId('sort').addEventListener('change', (event) => change(() => Object.assign(sorting, { key: event.target.value, reversed: false })));
  byId('direction').addEventListener('click', () => change(() => { sorting.reversed = !sorting.reversed; }));
  byId('clear').addEventListener('click', () => { byId('search').value = ''; change(clearFilters); });
  let timer = 0;
  byId('search').addEventListener('input', (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => change(() => { filters.search = event.target.value.trim().toLowerCase(); }), 150);
  });
  for (const view of ['gallery', 'table']) byId(`view-${view}`).addEventListener('click', () => change(() => { list.view = view; }));
  for (const mode of ['score', 'rank']) byId(`scale-${mode}`).addEventListener('click', () => { plot.mode = mode; layoutScatter(); drawAll(); });
}

function buildQuadrants() {
  byId('quadrants').replaceChildren(...[MISLABELLED, HARD, AMBIGUOUS, CLEAR].map((q) => el('button', {
    type: 'button', class: 'chip', 'data-quadrant': q, title: QUADRANT_WORDS[q],
    onclick: () => change(() => { filters.quadrant = filters.quadrant === q ? -1 : q; }),
  }, marker(q), el('span', { text: capital(quadrants[q]) }), el('b', { text: number.format(quadrantCounts[q]) }))));
}
