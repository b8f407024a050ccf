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
  byId('hits').textContent = hitWords();
  const words = filterWords();
  byId('count').textContent = words ? `${number.format(total)} of ${number.format(count)} examples: ${words}` : `All ${number.format(count)} examples`;
  byId('clear').hidden = !anyFilter();
  if (!storageWorks) notice('This browser keeps nothing for this file: download your decisions before you close it.');
}

function notice(text) {
  byId('notice').hidden = false;
  byId('notice').textContent = text;
}

function drawControls() {
  for (const [name, key] of [['filter-given', 'given'], ['filter-suggested', 'suggested'], ['filter-state', 'state']]) byId(name).value = filters[key];
  byId('sort').value = sorting.key;
  byId('direction').textContent = rising() ? '↑' : '↓';
  byId('direction').setAttribute('aria-pressed', String(sorting.reversed));
  if (byId('search').value.trim().toLowerCase() !== filters.search) byId('search').value = filters.search;
  for (const view of ['gallery', 'table']) byId(`view-${view}`).setAttribute('aria-pressed', String(list.view === view));
  for (const mode of ['score', 'rank']) byId(`scale-${mode}`).setAttribute('aria-pressed', String(plot.mode === mode));
  [...byId('shows').children].forEach((chip) => chip.setAttribute('aria-pressed', String(chip.dataset.show === filters.show)));
}

function fill(select, entries) {
  byId(select).replaceChildren(...entries.map(([value, text]) => el('option', { value: String(value), text })));
}

function buildControls() {
  const chosen = tags ? tags.names.map((_, k) => k) : mostConfused(MOST_OPTIONS);
  const some = [[-1, 'Any'], ...chosen.map((k) => [k, options[k]])];
  fill('filter-given', some);
  fill('filter-suggested', some);
  fill('filter-state', Object.entries(STATES).map(([key, { label }]) => [key, label]));
  fill('sort', Object.entries(SORTS).map(([key, { label }]) => [key, label]));
  for (const key of ['given', 'suggested']) byId(`filter-${key}`).addEventListener('change', (event) => change(() => { filters[key] = Number(event.target.value); }));
  byId('filter-state').addEventListener('change', (event) => change(() => { filters.state = event.target.value; }));
  byId('sort').addEventListener('change', (event) => change(() => Object.assign(sorting, { key: event.target.value, reversed: false })));
  byId('direction').addEventListener('click', () => change(() => { sorting.reversed = !sorting.reversed; }));
  byId('clear').addEventListener('click', () => { byId('search').value = ''; change(() => Object.assign(filters, NO_FILTER)); });
  let timer = 0;
  byId('search').addEventListener('input', (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => change(() => { filters.search = event.target.value.trim().toLowerCase(); }), 150);
  });
  for (const view of ['gallery', 'table']) byId(`view-${view}`).addEventListener('click', () => change(() => { list.view = view; }));
  for (const mode of ['score', 'rank']) byId(`scale-${mode}`).addEventListener('click', () => { plot.mode = mode; layoutScatter(); drawAll(); });
}

// One chip for each thing to ask for, of which there is something.
function buildShows() {
  byId('shows').replaceChildren(...Object.entries(SHOWS).filter(([key, { count: some }]) => some || key === 'all').map(([key, { label, words, quadrant: q, count: some, sort }]) => el('button', {
    type: 'button', class: q === undefined && !['contradicted', 'all'].includes(key) ? 'chip finding' : 'chip', 'data-show': key, title: words,
    onclick: () => change(() => { Object.assign(filters, { show: key, region: null }); Object.assign(sorting, { key: sort ?? 'disagreement', reversed: false }); }),
  }, q === undefined ? null : marker(q), el('span', { text: label }), el('b', { text: number.format(some) }))));
}

// ---- The keyboard: one table for what the keys do and for what the help shows ----

// Digits relabel at once where ten keys are enough: by name if the classes are digits, else by position.
const digitNames = classes.every((name) => /^\d$/.test(name));
const classKeys = tags || classes.length > 10 ? [] : classes.map((name, k) => (digitNames ? name : String((k + 1) % 10)));

const KEYS = [
  { keys: ['k'], words: 'Keep the given label', run: () => review('keep') },
  { keys: ['r'], words: 'Relabel as suggested', run: () => relabel() },
  { keys: ['a'], words: 'Mark as ambiguous', run: () => review('ambiguous') },
  { keys: ['s'], words: 'Skip', run: () => review('skip') },
  { keys: ['c'], words: tags ? 'Edit the tags' : 'Relabel as another class', run: () => openChooser() },
  { keys: classKeys, shown: classKeys.length ? `${classKeys[0]} … ${classKeys.at(-1)}` : '', words: 'Relabel as this class', run: (key) => relabel(classKeys.indexOf(key)) },
  { keys: ['u'], words: 'Undo', run: () => undoLast() },
  { keys: ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'], shown: '← → ↑ ↓ Home End', words: 'Move in the list', run: (key) => moveBy(key) },
  { keys: ['/'], words: 'Search', everywhere: true, run: () => { openFilters(true); byId('search').focus(); } },
  { keys: ['?'], words: 'This help', everywhere: true, run: () => byId('help').showModal() },
];

function openFilters(open) {
  byId('filters').hidden = !open;
  byId('filter-button').setAttribute('aria-expanded', String(open));
}

function moveBy(key) {
  const last = list.items.length - 1;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -list.columns, ArrowDown: list.columns };
  if (key === 'Home') moveTo(0);
  else if (key === 'End') moveTo(last);
  else moveTo(list.current + steps[key]);
}

// The keys act where they can be seen to act: inside the review, or with it in sight and nothing focused.
function reviewing() {
  const active = document.activeElement;
  if (active && active !== document.body) return byId('review').contains(active);
  return byId('review').getBoundingClientRect().top < 0.6 * innerHeight;
}

function onKey(event) {
  const typing = event.target.closest?.('input, select, textarea, dialog');
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !byId('shortcuts').checked) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const entry = KEYS.find(({ keys }) => keys.includes(key));
  if (!entry || !(entry.everywhere || (list.items.length && reviewing()) || key === 'u')) return;
  event.preventDefault();
  entry.run(key);
}

function buildHelp() {
  byId('keys').replaceChildren(...KEYS.filter(({ keys }) => keys.length).map(({ keys, shown, words }) => el('tr', {},
    el('th', { scope: 'row' }, el('kbd', { text: shown ?? keys[0].toUpperCase() })), el('td', { text: words }))));
}

document.addEventListener('keydown', onKey);
byId('search').addEventListener('keydown', (event) => { if (event.key === 'Escape' || event.key === 'Enter') scroller.focus(); });

// ---- The words around the data, the theme, and the first drawing ----

function buildLead() {
  const { warning } = audit.summary;
  const words = [noiseWords(), contradictedCount ? 'The most suspicious come first; some are mistakes of the model.' : '', truthWords()];
  byId('lead').textContent = words.filter(Boolean).join(' ');
  byId('remarks').hidden = audit.notes.length === 0;
  byId('remarks').textContent = audit.notes.map((note) => `${capital(note)}.`).join(' ');
  byId('warning').hidden = !warning;
  byId('warning').textContent = warning ?? '';
  byId('problems').hidden = found.problems.length === 0;
  byId('problems').replaceChildren(el('summary', { text: `The data has ${number.format(found.problems.length)} ${found.problems.length === 1 ? 'problem' : 'problems'} beside its labels` }),
    ...found.problems.map(problemNote));
  byId('start').hidden = contradictedCount === 0;
  byId('start').textContent = `Review ${contradictedCount === 1 ? 'it' : `the ${number.format(contradictedCount)}`}`;
  byId('start').addEventListener('click', openDetail);
}

// Dirt in the data: what it is, and the first examples that have it.
function problemNote({ text, count: some, ids }) {
  const named = ids?.length ? el('span', { class: 'hint', text: ` ${ids.slice(0, 5).join(', ')}${(some ?? ids.length) > 5 ? ', …' : ''}` }) : null;
  return el('p', {}, text, named);
}

// What the axes of the map are, as the scores call them.
function buildMapHint() {
  const [x, y] = audit.axes.map((name) => name.charAt(0).toLowerCase() + name.slice(1));
  byId('map-hint').textContent = `Upward: ${y}. To the right: ${x}. Click a point to open it; drag to list a region.`;
}

function noiseWords() {
  return audit.summary.noise_rate_words ?? '';
}

function truthWords() {
  if (!audit.precision) return '';
  const [both, flagged, wrong] = audit.precision;
  const missed = wrong === both ? 'none was missed' : `${number.format(wrong - both)} of ${number.format(wrong)} wrong labels were missed`;
  return `The true labels are known here: ${number.format(both)} of these ${number.format(flagged)} labels are wrong${flagged ? ` (${percent(both / flagged)})` : ''}, and ${missed}.`;
}

function buildAbout() {
  const entries = (facts) => {
    const made = [];
    const add = (name, value) => {
      if (value === null || value === undefined) return;
      if (typeof value === 'object' && !Array.isArray(value)) Object.entries(value).forEach(([key, inside]) => add(name ? `${name} · ${key}` : key, inside));
      else made.push(el('div', {}, el('dt', { text: name.replaceAll('_', ' ') }), el('dd', { text: [value].flat().map(worded).join(' to ') })));
    };
    add('', facts);
    return made;
  };
  const { source, seconds, annotators, ...method } = audit.summary;
  byId('facts').replaceChildren(...entries({ data: source, created: audit.created, examples: number.format(count), ...(tags ? { tags: tags.names.length } : { classes: classes.length }), seconds }));
  byId('method').replaceChildren(...entries(method));
}

// What the page calls things where an example has several labels.
function nameTags() {
  for (const [name, words] of [['filter-given', 'Has tag'], ['filter-suggested', 'Tag to change']]) byId(name).previousElementSibling.textContent = words;
  byId('chooser-title').textContent = 'Edit tags';
  chooserInput.previousElementSibling.textContent = 'Tag';
  byId('chooser-list').setAttribute('aria-multiselectable', 'true');
  byId('chooser-hint').replaceChildren(el('kbd', { text: 'Enter' }), ' switches a tag, ', el('kbd', { text: 'Ctrl Enter' }), ' saves, ', el('kbd', { text: 'Esc' }), ' leaves');
  byId('chooser-save').hidden = false;
}

function buildTheme() {
  const root = document.documentElement;
  const key = 'bayesmooth-theme';
  const prefers = matchMedia('(prefers-color-scheme: dark)');
  const dark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : prefers.matches);
  const apply = (theme) => {
    if (theme) root.dataset.theme = theme;
    byId('theme-button').textContent = dark() ? 'Light theme' : 'Dark theme';
  };
  const redraw = () => { apply(); buildShows(); drawAll(); };
  try { apply(localStorage.getItem(key)); } catch { apply(); }
  byId('theme-button').addEventListener('click', () => {
    apply(dark() ? 'light' : 'dark');
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* the choice holds until the page closes */ }
    redraw();
  });
  prefers.addEventListener('change', redraw);
}

function buildTools() {
  byId('filter-button').addEventListener('click', () => openFilters(byId('filters').hidden));
  byId('undo').addEventListener('click', undoLast);
  byId('save').addEventListener('click', download);
  byId('load').addEventListener('click', () => byId('file').click());
  byId('file').addEventListener('change', async (event) => {
    const [file] = event.target.files;
    if (file) notice(loadCsv(await file.text()));
    event.target.value = '';
    change(() => {});
    moveTo(firstOpen());
  });
  byId('help-button').addEventListener('click', () => byId('help').showModal());
}

// Where a review goes on: at the first example that nobody has decided on.
const firstOpen = () => Math.max(0, list.items.findIndex((i) => !decisions.has(i)));

function start() {
  restore();
  if (tags) nameTags();
  buildTheme();
  buildLead();
  buildMapHint();
  buildShows();
  buildControls();
  buildMatrix();
  buildPairs();
  buildCrowd();
  buildDetail();
  buildHelp();
  buildTools();
  buildAbout();
  layoutScatter();
  change(() => {});
  moveTo(firstOpen());
  new ResizeObserver(() => { if (plot.width !== byId('plot').clientWidth || plot.height !== byId('plot').clientHeight) { layoutScatter(); drawScatter(list.items); } }).observe(byId('plot'));
  new ResizeObserver(() => drawList()).observe(scroller);
}
start();
