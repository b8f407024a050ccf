// The whole page: what is drawn after a change, the words around the data, the keyboard, and the start.

// After another filter or order: at the example it was at, or else at the first.
function change(edit) {
  edit();
  relist(0);
  drawControls();
}

// After a decision here or in another tab, an undo, or a loaded file. Decisions move examples in or out of the list
// where it is filtered by them.
function decisionsChanged() {
  if (relearn() && sorting === 'disagreement') relist(list.current);
  else if (filters.state === 'all') redrawReview();
  else relist(list.current);
}

function relist(otherwise) {
  const kept = list.items.length ? currentExample() : -1;
  list.items = filtered();
  const position = list.items.indexOf(kept);
  list.current = Math.max(0, Math.min(position >= 0 ? position : otherwise, list.items.length - 1));
  redrawReview();
}

function redrawReview() {
  drawList();
  drawDetail();
  drawProgress();
}

// Open an example, in the list it is in or else among all.
function showExample(example) {
  if (!list.items.includes(example)) change(() => Object.assign(filters, { show: 'all', ...NO_FILTER }));
  moveTo(list.items.indexOf(example));
  if (narrow.matches) openDetail();
  else toReview();
}

// Where the reader chose examples further down, bring them into sight.
function toReview() {
  const { top, bottom } = byId('panes').getBoundingClientRect();
  if (top < 0 || bottom > innerHeight + 200) byId('review').scrollIntoView({ block: 'start' });
}

function choosePair(row, column) {
  const again = filters.given === row && filters.suggested === column;
  change(() => Object.assign(filters, again ? { show: firstShow, given: -1, suggested: -1 } : { show: 'all', given: row, suggested: column }));
  if (!again) toReview();
}

const reviewedCount = () => list.items.reduce((done, i) => (decisions.has(i) ? done + 1 : done), 0);
const allReviewed = () => list.items.length === reviewedCount();

function drawProgress() {
  const [done, total, open] = [reviewedCount(), list.items.length, undecided().length];
  const progress = byId('progress');
  progress.setAttribute('aria-valuemax', total);
  progress.setAttribute('aria-valuenow', done);
  progress.firstElementChild.style.width = `${total ? (100 * done) / total : 0}%`;
  byId('progress-text').textContent = `${number.format(done)} of ${number.format(total)} reviewed`;
  byId('undo').disabled = steps.length === 0;
  byId('save').disabled = decisions.size === 0;
  byId('accept-all').disabled = open === 0;
  byId('accept-all').textContent = `Accept ${open === 1 ? 'the suggestion' : `all ${number.format(open)} suggestions`} in this list`;
  drawRate();
  const words = filterWords();
  byId('count').textContent = words ? `${number.format(total)} of ${number.format(count)} examples: ${words}` : `All ${number.format(count)} examples`;
  byId('clear').hidden = !anyFilter();
  if (!storageWorks) notice('This browser keeps nothing for this file: download your decisions before you close it.');
}

function notice(...words) {
  byId('notice').hidden = false;
  byId('notice').replaceChildren(...words);
}

// ---- The controls above the list ----

function fill(select, entries) {
  byId(select).replaceChildren(...entries.map(([value, text]) => el('option', { value: String(value), text })));
}

function drawControls() {
  for (const key of ['given', 'suggested', 'state']) byId(`filter-${key}`).value = filters[key];
  byId('sort').value = sorting;
  if (byId('search').value.trim().toLowerCase() !== filters.search) byId('search').value = filters.search;
  for (const chip of byId('shows').children) chip.setAttribute('aria-pressed', String(chip.dataset.show === filters.show));
  for (const node of document.querySelectorAll('[data-row]')) {
    node.setAttribute('aria-pressed', String(Number(node.dataset.row) === filters.given && Number(node.dataset.column) === filters.suggested));
  }
}

function buildControls() {
  const names = [[-1, 'Any'], ...label.filters().map((k) => [k, label.names[k]])];
  for (const key of ['given', 'suggested']) {
    fill(`filter-${key}`, names);
    byId(`filter-${key}`).previousElementSibling.textContent = label.words[key];
    on(`filter-${key}`, 'change', (event) => change(() => { filters[key] = Number(event.target.value); }));
  }
  fill('filter-state', Object.entries(STATES).map(([key, { label: text }]) => [key, text]));
  fill('sort', Object.entries(SORTS).map(([key, { label: text }]) => [key, text]));
  on('filter-state', 'change', (event) => change(() => { filters.state = event.target.value; }));
  on('sort', 'change', (event) => change(() => { sorting = event.target.value; }));
  on('clear', 'click', () => change(() => Object.assign(filters, NO_FILTER)));
  let timer = 0;
  on('search', 'input', (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => change(() => { filters.search = event.target.value.trim().toLowerCase(); }), 150);
  });
  on('search', 'keydown', (event) => { if (event.key === 'Escape' || event.key === 'Enter') scroller.focus(); });
  on('filter-button', 'click', () => openFilters(byId('filters').hidden));
}

function openFilters(open) {
  byId('filters').hidden = !open;
  byId('filter-button').setAttribute('aria-expanded', String(open));
}

// One chip for each thing to ask for, of which there is something.
function buildShows() {
  const some = Object.entries(SHOWS).filter(([key, show]) => show.count || key === 'all');
  byId('shows').replaceChildren(...some.map(([key, show]) => button({
    class: show.finding ? 'chip finding' : 'chip', 'data-show': key, title: show.words,
    onclick: () => { change(() => { filters.show = key; sorting = show.sort ?? 'disagreement'; }); moveTo(firstOpen()); },
  }, show.quadrant === undefined ? null : marker(show.quadrant), el('span', { text: show.label }), el('b', { text: number.format(show.count) }))));
}

// ---- The keyboard: one table for what the keys do and for what the help shows ----

const classKeys = label.keys();
const KEYS = [
  ...DECIDING,
  {
    keys: classKeys, shown: `${classKeys[0]} … ${classKeys.at(-1)}`, words: 'Relabel as this class',
    run: (key) => relabel(classes[classKeys.indexOf(key)]),
  },
  { keys: ['u'], words: 'Undo', run: () => undoLast() },
  { keys: MOVES, shown: '← → ↑ ↓ Home End', words: 'Move in the list', run: moveBy },
  { keys: ['/'], words: 'Search', everywhere: true, run: () => { openFilters(true); byId('search').focus(); } },
  { keys: ['?'], words: 'This help', everywhere: true, run: () => byId('help').showModal() },
];

// The keys act where they can be seen to act: inside the review, or with it in sight and nothing focused.
function reviewing() {
  const active = document.activeElement;
  if (active && active !== document.body) return byId('review').contains(active);
  return byId('review').getBoundingClientRect().top < 0.6 * innerHeight;
}

document.addEventListener('keydown', (event) => {
  const typing = event.target.closest?.('input, select, textarea, dialog');
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !byId('shortcuts').checked) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const entry = KEYS.find(({ keys }) => keys.includes(key));
  if (!entry || !(entry.everywhere || (list.items.length && reviewing()) || key === 'u')) return;
  event.preventDefault();
  entry.run(key);
});

function buildHelp() {
  byId('keys').replaceChildren(...KEYS.filter(({ keys }) => keys.length).map(({ keys, shown: text, words }) => el('tr', {},
    el('th', { scope: 'row' }, el('kbd', { text: text ?? keys[0].toUpperCase() })), el('td', { text: words }))));
  on('help-button', 'click', () => byId('help').showModal());
}

// ---- The words around the data ----

function buildLead() {
  const { warning, noise_rate_words: rate, informative, notes: remarks } = audit.summary;
  const suspicious = contradictedCount ? 'The most suspicious labels come first; some of them are right.' : '';
  const order = design?.asked ? `Review the sample of ${design.queue.length}: then the page tells how many labels are wrong.` : suspicious;
  byId('lead').textContent = [informative === false ? '' : rate, order, audit.truth].filter(Boolean).join(' ');
  byId('remarks').hidden = remarks.length === 0;
  byId('remarks').textContent = remarks.map((note) => `${capital(note)}.`).join(' ');
  byId('warning').hidden = !warning;
  byId('warning').textContent = warning ?? '';
  const some = firstShow === 'all' ? 0 : SHOWS[firstShow].count;
  byId('start').hidden = some === 0;
  byId('start').textContent = `Review ${some === 1 ? 'it' : `the ${number.format(some)}`}`;
  on('start', 'click', openDetail);
}

// Dirt in the data: what it is, and which examples have it.
function buildProblems() {
  byId('problems').hidden = found.problems.length === 0;
  byId('problems').replaceChildren(el('summary', { text: `The data has ${plural(found.problems.length, 'problem')} beside its labels` }),
    ...found.problems.map(problemNote));
}

const FIRST_IDS = 5;
function problemNote({ text, ids }) {
  if (ids.length <= FIRST_IDS) return el('p', {}, text, el('span', { class: 'hint', text: ` ${ids.join(', ')}` }));
  const first = ` ${ids.slice(0, FIRST_IDS).join(', ')} and ${number.format(ids.length - FIRST_IDS)} more`;
  return el('details', {}, el('summary', {}, text, el('span', { class: 'hint', text: first })), el('p', { class: 'hint', text: ids.join(', ') }));
}

function buildAbout() {
  const entries = (name, value) => {
    if (value === null || value === undefined) return [];
    const inside = typeof value === 'object' && !Array.isArray(value) ? Object.entries(value) : null;
    if (inside) return inside.flatMap(([key, part]) => entries(name ? `${name} · ${key}` : key, part));
    return [el('div', {}, el('dt', { text: name.replaceAll('_', ' ') }), el('dd', { text: [value].flat().map(worded).join(' to ') }))];
  };
  const { source, seconds, annotators, notes: remarks, ...method } = audit.summary;
  byId('facts').replaceChildren(...entries('', { data: source, created: audit.created, examples: number.format(count), ...label.facts(), seconds }));
  byId('method').replaceChildren(...entries('', method));
}

function buildChooser() {
  byId('chooser-title').textContent = label.words.choose;
  chooserInput.previousElementSibling.textContent = label.words.field;
  byId('chooser-list').setAttribute('aria-multiselectable', String(label.several));
  byId('chooser-hint').hidden = label.several;
  byId('chooser-new').hidden = audit.label.named;
  byId('chooser-several').hidden = byId('chooser-save').hidden = !label.several;
}

function buildTools() {
  on('undo', 'click', undoLast);
  on('accept-all', 'click', acceptAll);
  on('save', 'click', () => {
    const file = download();
    const [place, before, after] = audit.clean;
    const parts = `${before} ${file} ${after}`.split(' ').flatMap((text) => [' ', el('span', { text })]).slice(1); // no option is broken
    notice(`Saved as ${file}. To apply it, put it beside ${place} and run there:`, el('code', {}, ...parts));
  });
  on('load', 'click', () => byId('file').click());
  on('file', 'change', async (event) => {
    const [file] = event.target.files;
    if (file) notice(loadCsv(await file.text()));
    event.target.value = '';
    moveTo(firstOpen());
  });
}

// Where a review goes on: at the first example that nobody has decided on.
const firstOpen = () => Math.max(0, list.items.findIndex((i) => !decisions.has(i)));

readStore();
relearn();
for (const build of [buildLead, buildProblems, buildShows, buildControls, buildChooser, buildDetail, buildHelp, buildTools, buildAbout]) build();
label.overview();
change(() => {});
moveTo(firstOpen());
