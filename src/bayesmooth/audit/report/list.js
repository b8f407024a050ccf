// Which examples are listed, in which order, and how the list draws them: one page at a time.

const finding = (title, words, test, sort) => ({ label: title, words, test, sort, finding: true, count: suspicion.order.filter(test).length });

// What the reader can ask to see, one at a time; `words` explain it.
const SHOWS = {
  queue: {
    label: 'Sample to review', sort: 'queue', count: queuePlace.size, test: (i) => queuePlace.has(i),
    words: 'Labels drawn from everywhere, suspicious ones more often: they tell how many labels are wrong, and teach the ranking.',
  },
  contradicted: { label: 'Look wrong', words: 'The model prefers another label.', count: contradictedCount, test: contradicted },
  ...Object.fromEntries([MISLABELLED, HARD, AMBIGUOUS, CLEAR].map((q) => [quadrants[q],
    { label: capital(quadrants[q]), words: label.quadrants[q], quadrant: q, count: quadrantCounts[q], test: (i) => quadrant[i] === q }])),
  all: { label: 'All', words: 'Every example.', count, test: () => true },
  conflicts: finding('Conflicting copies', 'Near duplicates that do not carry the same label.', conflicting, 'copies'),
  duplicates: finding('Near duplicates', 'Examples that are nearly the same, and their copies.', (i) => firstCopy.has(i), 'copies'),
  outliers: finding('Outliers', 'Far from every other example.', (i) => outlierScore.has(i), 'outliers'),
  rare: finding('Rare classes', 'Their class has less than a tenth of an even share.', (i) => rare.has(i)),
  leaks: finding('In the other split', 'The other split holds a near duplicate.', (i) => leakOf.has(i)),
};

const inOrder = (scores) => ranking(scores).order;
const farthestFirst = () => inOrder(Float32Array.from(given, (_, i) => outlierScore.get(i) ?? 0));
const SORTS = {
  disagreement: { label: 'Most suspicious', order: () => suspicion.order },
  ...(design ? { queue: { label: 'Sample to review first', order: inQueueOrder } } : {}),
  ambiguity: { label: 'Most ambiguous', order: () => inOrder(ambiguity) },
  probability: { label: 'Surest suggestion', order: () => inOrder(columns.suggestedProbability) },
  ...(firstCopy.size ? { copies: { label: 'Copies together', order: copiesTogether } } : {}),
  ...(outlierScore.size ? { outliers: { label: 'Farthest outlier', order: farthestFirst } } : {}),
  position: { label: 'Data set order', order: () => Uint32Array.from({ length: count }, (_, i) => i) },
};

const STATES = {
  all: { label: 'All', test: () => true },
  open: { label: 'Not reviewed', test: (i) => !decisions.has(i) },
  done: { label: 'Reviewed', test: (i) => decisions.has(i) },
  ...Object.fromEntries(audit.decisions.names.map((name) => [name, { label: BADGES[name], test: (i) => decisions.get(i)?.name === name }])),
};

const firstShow = design?.asked ? 'queue' : contradictedCount ? 'contradicted' : 'all';
const NO_FILTER = { search: '', given: -1, suggested: -1, state: 'all' };
const filters = { show: firstShow, ...NO_FILTER };
let sorting = SHOWS[firstShow].sort ?? 'disagreement'; // a key of SORTS

let haystack = null;
function searchable(example) {
  haystack ??= new Array(count);
  haystack[example] ??= [idOf(example), givenName(example), suggestedName(example), plainText(example)].join('\n').toLowerCase();
  return haystack[example];
}

function passes(i) {
  return SHOWS[filters.show].test(i)
    && (filters.given < 0 || label.has(i, filters.given))
    && (filters.suggested < 0 || label.proposes(i, filters.suggested))
    && STATES[filters.state].test(i)
    && (filters.search === '' || searchable(i).includes(filters.search));
}

const orders = new Map(); // a ranking is computed when it is first asked for
function filtered() {
  if (!orders.has(sorting)) orders.set(sorting, SORTS[sorting].order());
  return orders.get(sorting).filter(passes);
}

const anyFilter = () => Object.keys(NO_FILTER).some((key) => filters[key] !== NO_FILTER[key]);

// The filters in words, for the line above the list.
function filterWords() {
  const words = filters.show === 'all' ? [] : [SHOWS[filters.show].label.toLowerCase()];
  if (filters.given >= 0) words.push(`${label.words.withGiven} “${label.names[filters.given]}”`);
  if (filters.suggested >= 0) words.push(`${label.words.withSuggested} “${label.names[filters.suggested]}”`);
  if (filters.state !== 'all') words.push(STATES[filters.state].label.toLowerCase());
  if (filters.search) words.push(`matching “${filters.search}”`);
  return words.join(', ');
}

// ---- The list ----

const PAGE = 60; // examples that are in the page at a time
const list = { items: new Uint32Array(0), current: 0 };
const narrow = matchMedia('(max-width: 720px)'); // a phone: the example under review covers the page
const scroller = byId('list');
const inner = byId('list-inner');
const currentExample = () => list.items[list.current];
const pageOf = (position) => Math.floor(position / PAGE);

function itemWords(example) {
  const decided = decisions.get(example);
  return [`${nameOf(example)}: labelled ${givenName(example)}`, `looks like ${suggestedName(example)}`, suspicionWords(example),
    quadrants[quadrant[example]], ...findingWords(example), ...(decided ? [decisionWords(decided)] : [])].join(', ');
}

// In the sample nothing shows beforehand which labels are suspicious and which were drawn.
const sampling = () => filters.show === 'queue';

// The label that was decided on, or else the suggested one.
function labelToShow(i) {
  const decided = decisions.get(i);
  if (decided?.name === 'keep' || (!decided && sampling())) return givenName(i);
  return decided?.label || suggestedName(i);
}

function card(position) {
  const example = list.items[position];
  const decided = decisions.get(example);
  const words = [...(sampling() ? [] : [suspicionWords(example)]), ...findingWords(example)].join(' · ');
  return el('div', {
    id: `item-${example}`, class: 'item', role: 'option', 'aria-label': itemWords(example), 'aria-selected': String(position === list.current),
    'aria-posinset': position + 1, 'aria-setsize': list.items.length, 'data-position': position, 'data-chance': chance?.[example],
  }, el('div', { class: 'media' }, content(example, 3)), label.show(givenName(example), labelToShow(example)), label.note(example),
  el('p', { class: 'share-line' }, sampling() ? null : marker(quadrant[example]),
    el('span', decided ? { class: `badge ${decided.name}`, text: BADGES[decided.name] } : { text: words })));
}

function drawList() {
  const start = pageOf(list.current) * PAGE;
  const positions = Array.from({ length: Math.min(PAGE, list.items.length - start) }, (_, k) => start + k);
  inner.className = `${hasContent ? 'cards' : 'lines'} ${pictured ? 'pictured' : ''}`;
  inner.replaceChildren(...positions.map(card));
  byId('empty').hidden = list.items.length > 0;
  byId('empty').textContent = filters.state === 'open' ? 'Nothing is left to review here.' : 'No example passes these filters.';
  byId('pager').hidden = list.items.length <= PAGE;
  byId('pager-words').textContent = `${number.format(start + 1)} to ${number.format(start + positions.length)} of ${number.format(list.items.length)}`;
  byId('page-before').disabled = start === 0;
  byId('page-after').disabled = start + PAGE >= list.items.length;
  revealCurrent();
}

const redraw = (position) => byId(`item-${list.items[position]}`)?.replaceWith(card(position));

function revealCurrent() {
  const node = list.items.length ? byId(`item-${currentExample()}`) : null;
  if (!node) { scroller.removeAttribute('aria-activedescendant'); return; }
  scroller.setAttribute('aria-activedescendant', node.id);
  const [top, bottom] = [node.offsetTop, node.offsetTop + node.offsetHeight];
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (bottom > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = bottom - scroller.clientHeight + 4;
}

function moveTo(position) {
  if (!list.items.length) return;
  const before = list.current;
  list.current = Math.max(0, Math.min(position, list.items.length - 1));
  if (pageOf(before) === pageOf(list.current)) [before, list.current].forEach(redraw);
  else drawList();
  revealCurrent();
  drawDetail();
}

const MOVES = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'];
function moveBy(key) {
  const row = getComputedStyle(inner).gridTemplateColumns.split(' ').length; // cards side by side
  moveTo([list.current - 1, list.current + 1, list.current - row, list.current + row, 0, list.items.length - 1][MOVES.indexOf(key)]);
}

inner.addEventListener('click', (event) => {
  const item = event.target.closest('.item');
  if (!item) return;
  moveTo(Number(item.dataset.position));
  if (narrow.matches) openDetail();
});
on('page-before', 'click', () => moveTo((pageOf(list.current) - 1) * PAGE));
on('page-after', 'click', () => moveTo((pageOf(list.current) + 1) * PAGE));
