// The words around the data, the theme, and the first drawing.

function buildLead() {
  const wrong = quadrantCounts[MISLABELLED] + quadrantCounts[HARD];
  const sides = `: surely for ${number.format(quadrantCounts[MISLABELLED])} (mislabelled), wavering for ${number.format(quadrantCounts[HARD])} (hard)`;
  byId('lead').textContent = `${wrong ? `It prefers another label${sides}. The worst come first; its own mistakes are among them. ` : ''}`
    + `On ${number.format(quadrantCounts[AMBIGUOUS])} of those it agrees with it wavers (ambiguous).`;
  byId('lead').after(el('p', { class: 'lead', text: truthWords(), hidden: !audit.precision }));
  const start = byId('start');
  start.hidden = wrong === 0;
  start.textContent = `Review ${wrong === 1 ? 'it' : `the ${number.format(wrong)}`}`;
  start.addEventListener('click', startReview);
  const { method, noise_rate: rate, seconds } = audit.summary;
  const facts = [audit.source, method, rate === undefined ? null : `estimated noise rate ${percent(rate)}`, seconds === undefined ? null : `${brief(seconds)} s`, audit.created];
  byId('facts').replaceChildren(...facts.filter(Boolean).map((fact) => el('span', { text: String(fact) })));
}

function truthWords() {
  if (!audit.precision) return '';
  const [both, flagged, wrong] = audit.precision;
  const share = (part, whole) => (whole ? ` (${percent(part / whole)})` : '');
  return `The true labels are known here: ${number.format(both)} of these ${number.format(flagged)} are wrong indeed${share(both, flagged)}, out of ${number.format(wrong)} wrong labels${share(both, wrong)}.`;
}

function startReview() {
  change(() => { clearFilters(); filters.quadrant = CONTRADICTED; });
  byId('review').scrollIntoView({ block: 'start' });
  scroller.focus({ preventScroll: true });
}

function buildAbout() {
  const entries = [];
  const add = (name, value) => {
    if (value !== null && typeof value === 'object') Object.entries(value).forEach(([key, inside]) => add(name ? `${name} · ${key}` : key, inside));
    else entries.push(el('div', {}, el('dt', { text: name.replaceAll('_', ' ') }), el('dd', { text: shown(typeof value === 'number' && !Number.isInteger(value) ? brief(value) : value) })));
  };
  add('', { source: audit.source, created: audit.created, examples: number.format(count), classes: classes.length, ...audit.summary });
  byId('about').replaceChildren(...entries);
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
  const redraw = () => { apply(); buildQuadrants(); drawAll(); };
  try { apply(localStorage.getItem(key)); } catch { apply(); }
  byId('theme-button').addEventListener('click', () => {
    apply(dark() ? 'light' : 'dark');
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* the choice holds until the page closes */ }
    redraw();
  });
  prefers.addEventListener('change', redraw);
}

function buildTools() {
  byId('undo').addEventListener('click', undoLast);
  byId('save').addEventListener('click', download);
  byId('load').addEventListener('click', () => byId('file').click());
  byId('file').addEventListener('change', async (event) => {
    const [file] = event.target.files;
    if (file) notice(loadCsv(await file.text()));
    event.target.value = '';
    change(() => {});
  });
  byId('help-button').addEventListener('click', () => byId('help').showModal());
}

function start() {
  restore();
  buildTheme();
  buildLead();
  buildQuadrants();
  buildControls();
  buildMatrix();
  buildPairs();
  buildDetail();
  buildHelp();
  buildTools();
  buildAbout();
  byId('filters').open = matchMedia('(min-width: 721px)').matches; // a phone shows the example first
  layoutScatter();
  change(() => {});
  new ResizeObserver(() => { if (plot.width !== byId('plot').clientWidth || plot.height !== byId('plot').clientHeight) { layoutScatter(); drawScatter(list.items); } }).observe(byId('plot'));
  new ResizeObserver(() => drawList()).observe(scroller);
}
start();
