// The keyboard: one table for what the keys do and for what the help shows.

// Digits relabel at once where ten keys are enough: by name if the classes are digits, else by position.
const digitNames = classes.every((name) => /^\d$/.test(name));
const classKeys = classes.length > 10 ? [] : classes.map((name, k) => (digitNames ? name : String((k + 1) % 10)));

const KEYS = [
  { keys: ['k'], words: 'Keep the given label', run: () => review('keep') },
  { keys: ['r'], words: 'Relabel as suggested', run: () => relabel() },
  { keys: ['a'], words: 'Mark as ambiguous', run: () => review('ambiguous') },
  { keys: ['s'], words: 'Skip', run: () => review('skip') },
  { keys: ['c'], words: 'Relabel as another class', run: () => openChooser() },
  { keys: classKeys, shown: classKeys.length ? `${classKeys[0]} … ${classKeys.at(-1)}` : '', words: 'Relabel as this class', run: (key) => relabel(classKeys.indexOf(key)) },
  { keys: ['u'], words: 'Undo', run: () => undoLast() },
  { keys: ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'], shown: '← → ↑ ↓ Home End', words: 'Move in the list', run: (key) => moveBy(key) },
  { keys: ['/'], words: 'Search', everywhere: true, run: () => byId('search').focus() },
  { keys: ['?'], words: 'This help', everywhere: true, run: () => byId('help').showModal() },
];

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
