// Several annotators: their votes on an example, how good everybody is, and what to label again and by whom.

const crowd = audit.annotators;
const MOST_CONFUSED = 3; // pairs that are told of one person

// How many said what, on a card; those for another label than the given one are marked.
function voteCounts(example) {
  if (!crowd) return '';
  const times = new Map();
  for (const [, label] of crowd.votes[example]) times.set(label, (times.get(label) ?? 0) + 1);
  return el('p', { class: 'votes' }, ...[...times].sort((a, b) => b[1] - a[1]).map(([label, some]) => el('span', { class: label === given[example] ? 'tag' : 'tag other' },
    ...breakable(classes[label]), el('i', { text: some > 1 ? ` × ${some}` : '' }))));
}

// The same by name.
function voteLine(example) {
  if (!crowd) return '';
  return el('p', { class: 'votes' }, ...crowd.votes[example].map(([who, label]) => el('span', {
    class: label === given[example] ? 'tag' : 'tag other', title: `${crowd.names[who]}: ${classes[label]}`,
  }, el('i', { text: crowd.names[who] }), ` ${classes[label]}`)));
}

// How often someone is right: a dot on its 95 % interval, from the lowest of all to 100 %.
function qualityBar({ quality, low, high }, from) {
  const at = (share) => (100 * (share - from)) / (1 - from || 1);
  const [range, dot] = [el('i', { class: 'range' }), el('i', { class: 'dot' })];
  range.style.left = `${at(low)}%`;
  range.style.width = `${at(high) - at(low)}%`;
  dot.style.left = `${at(quality)}%`;
  return el('span', { class: 'quality', 'aria-hidden': 'true' }, range, dot);
}

function buildCrowd() {
  byId('annotators').hidden = byId('annotators-link').hidden = !crowd;
  if (!crowd) return;
  const from = Math.min(...crowd.people.map(({ low }) => low));
  const asked = (name) => crowd.again.filter(([, , , who]) => who === name).length;
  const confused = ({ confusions }) => confusions.map(([k, v, share]) => `${classes[k]} as ${classes[v]} ${percent(share)}`);
  byId('people').replaceChildren(el('table', { class: 'people' },
    el('thead', {}, el('tr', {}, ...['Annotator', 'Right', '', 'Votes', 'Takes', 'To ask'].map((text) => el('th', { scope: 'col', text })))),
    el('tbody', {}, ...crowd.people.map((one) => el('tr', {},
      el('th', { scope: 'row', text: one.name }),
      el('td', {}, el('b', { text: percent(one.quality) }), el('span', { class: 'hint', text: ` ${percent(one.low)} to ${percent(one.high)}` })),
      el('td', {}, qualityBar(one, from)), el('td', { text: number.format(one.votes) }),
      el('td', { class: 'confusions', text: confused(one).slice(0, MOST_CONFUSED).join(', ') || '–', title: confused(one).join(', ') }),
      el('td', {}, asked(one.name) ? el('button', { type: 'button', 'data-annotator': one.name, text: String(asked(one.name)), onclick: () => drawAgain(one.name) }) : ''))))));
  drawAgain(null);
}

// The least certain examples, of all people or of the one that was clicked; a second click shows all again.
let askedOf = null;
function drawAgain(name) {
  askedOf = name === askedOf ? null : name;
  byId('again-title').textContent = askedOf === null ? 'To label again' : `To label again by ${askedOf}`;
  for (const button of document.querySelectorAll('#people button')) button.setAttribute('aria-pressed', String(button.dataset.annotator === askedOf));
  const some = crowd.again.filter(([, , , who]) => askedOf === null || who === askedOf);
  byId('again').replaceChildren(some.length ? '' : el('p', { class: 'hint', text: 'None: the consensus is sure of every example.' }), ...some.map(([example, label, share, who]) => el('button', { type: 'button', class: 'again', onclick: () => showExample(example) },
    tileOf.has(example) ? thumbnail(example) : '',
    el('span', { class: 'again-words' }, el('b', { text: idOf(example) }), el('span', { class: 'hint', text: ` probably ${classes[label]}, ${percent(share)}` }), voteLine(example)),
    el('span', { class: 'again-who' }, 'ask ', el('b', { text: who })))));
}
