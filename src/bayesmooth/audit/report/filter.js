// Which examples are in the list, and in which order.

const filters = { search: '', quadrant: -1, given: -1, suggested: -1, state: 'all', region: null };
const sorting = { key: 'disagreement', reversed: false };

const SORTS = {
  disagreement: { label: 'Most suspicious', order: () => bySuspicion.order },
  ambiguity: { label: 'Most ambiguous', order: () => byAmbiguity.order },
  probability: { label: 'Surest suggestion', order: () => ranking(columns.suggestedProbability).order },
  given: { label: 'Given label', rising: true, order: () => ranking(Float32Array.from(given, (label) => -label)).order },
  suggested: { label: 'Suggested label', rising: true, order: () => ranking(Float32Array.from(suggested, (label) => -label)).order },
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
  return (filters.quadrant < 0 || quadrant[i] === filters.quadrant || (filters.quadrant === CONTRADICTED && contradicted(i)))
    && (filters.given < 0 || given[i] === filters.given)
    && (filters.suggested < 0 || suggested[i] === filters.suggested)
    && (filters.region === null || filters.region[i] === 1)
    && (filters.state === 'all' || STATES[filters.state].test(i))
    && (filters.search === '' || searchable(i).includes(filters.search));
}

function filtered() {
  const list = currentOrder().filter(passes);
  return sorting.reversed ? list.reverse() : list;
}

const anyFilter = () => filters.search !== '' || filters.quadrant >= 0 || filters.given >= 0 || filters.suggested >= 0
  || filters.state !== 'all' || filters.region !== null;

function clearFilters() {
  Object.assign(filters, { search: '', quadrant: -1, given: -1, suggested: -1, state: 'all', region: null });
}

// The filters in words, for the line above the list.
function filterWords() {
  const words = [];
  if (filters.quadrant >= 0) words.push(quadrants[filters.quadrant] ?? 'contradicted');
  if (filters.given >= 0) words.push(`labelled “${classes[filters.given]}”`);
  if (filters.suggested >= 0) words.push(`looks like “${classes[filters.suggested]}”`);
  if (filters.state !== 'all') words.push(STATES[filters.state].label.toLowerCase());
  if (filters.region) words.push('inside the selected region');
  if (filters.search) words.push(`matching “${filters.search}”`);
  return words.join(', ');
}
