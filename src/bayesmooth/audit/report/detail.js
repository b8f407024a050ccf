// The example under review: what it is, what it is compared with, and the decision.

const detail = byId('detail');
const where = el('p', { class: 'where' });
const stage = el('div', { class: 'stage' });
const verdict = el('div', { class: 'verdict' });
const beside = el('div', { class: 'beside' });
const reason = el('p', { class: 'reason' });
const notes = el('div', { class: 'notes' });

// What can be decided: one table for the buttons, the keys and the help.
const DECIDING = [
  { action: 'relabel', keys: ['r'], words: 'Relabel as suggested', run: () => acceptSuggestion() },
  { action: 'keep', keys: ['k'], words: 'Keep the given label', run: () => review(decision('keep')) },
  { action: 'other', keys: ['c'], words: label.words.otherKey, run: () => openChooser() },
  { action: 'remove', keys: ['x', 'Delete'], words: 'Remove the example from the data', run: () => review(decision('remove')) },
  { action: 'skip', keys: ['s'], words: 'Skip: seen, not decided', run: () => review(decision('skip')) },
];
const actions = Object.fromEntries(DECIDING.map(({ action, keys, run }) => [action, button({ class: `action ${action}`, onclick: run },
  el('span', { text: capital(action) }), el('kbd', { 'aria-hidden': 'true', text: keys[0].toUpperCase() }))]));

function buildDetail() {
  const step = (text, words, distance) => button({ class: 'icon', 'aria-label': words, text, onclick: () => moveTo(list.current + distance) });
  detail.append(
    el('div', { class: 'detail-head' }, button({ class: 'close', text: '‹ List', onclick: closeDetail }),
      where, step('←', 'Previous example', -1), step('→', 'Next example', 1)),
    stage, verdict, el('div', { class: 'actions', role: 'group', 'aria-label': 'Decision' }, ...Object.values(actions)),
    beside, notes, reason);
}

// On a phone the example covers the page, its buttons at the lower edge, until it is closed.
function openDetail() {
  if (list.items.length) document.body.classList.add('reviewing');
  detail.scrollTop = 0;
}

function closeDetail() {
  document.body.classList.remove('reviewing');
  revealCurrent();
}

function drawDetail() {
  detail.hidden = list.items.length === 0;
  if (detail.hidden) return;
  const i = currentExample();
  detail.className = `detail ${isRow(i) ? 'rows' : hasContent ? '' : 'bare'}`;
  const row = audit.digested ? 'row' : audit.rows ? `row ${audit.rows[i]}, id` : 'id';
  where.replaceChildren(el('b', { text: number.format(list.current + 1) }), ` of ${number.format(list.items.length)} \u2003${row} ${nameOf(i)}`);
  drawStage(i);
  verdict.replaceChildren(...label.evidence(i), ...(clean ? [truth(i)] : []));
  const near = similar.get(i) ?? { given: [], suggested: [] };
  const groups = [['given', givenName(i)], ['suggested', suggestedName(i)]].slice(0, agrees(i) ? 1 : 2)
    .map(([kind, name]) => ({ kind, name, some: near[kind] })).filter(({ some }) => some.length);
  beside.replaceChildren(...(isRow(i) ? [comparison(i, groups)] : groups.map((group) => neighbours(i, group))));
  reason.hidden = sampling();
  reason.replaceChildren(marker(quadrant[i]), el('b', { text: capital(quadrants[quadrant[i]]) }), ` ${label.quadrants[quadrant[i]]}`);
  notes.replaceChildren(...findingNotes(i));
  drawActions(i);
}

function drawStage(i) {
  stage.hidden = !hasContent || isRow(i);
  if (stage.hidden) return;
  const zoom = () => { byId('zoom').replaceChildren(thumbnail(i), el('p', { class: 'hint', text: nameOf(i) })); byId('zoom').showModal(); };
  stage.replaceChildren(...(pictureOf.has(i) ? [
    button({ class: 'zoom', 'aria-label': 'Enlarge the picture', onclick: zoom }, thumbnail(i)),
    plainText(i) ? el('p', { class: 'text', text: plainText(i) }) : ''] : [content(i)]));
}
on('zoom', 'click', () => byId('zoom').close());

function truth(i) {
  return el('p', { class: 'truth' }, 'True label: ', el('b', { text: classes[clean[i]] }), clean[i] === given[i] ? ' (the given label is right)' : '');
}

// The examples most like this one: those with its label, and those with the suggested one.
function neighbours(i, { kind, name, some }) {
  const shownBeside = (other) => button({ class: 'neighbour', title: nameOf(other), onclick: () => showExample(other) }, content(other));
  return el('div', { class: `near ${kind}` }, el('h3', {}, ...label.nearWords(i, name)), el('div', { class: 'near-items' }, ...some.map(shownBeside)));
}

// A table row beside the rows most like it.
function comparison(i, groups) {
  const others = groups.flatMap(({ some }) => some);
  const heads = groups.map(({ kind, name, some }) => el('th', { colspan: some.length, scope: 'colgroup', class: kind }, ...label.nearWords(i, name)));
  const line = (key, k) => el('tr', {}, el('th', { scope: 'row', text: key }), el('td', {}, worded(rowOf(i)[k])),
    ...others.map((other) => el('td', { text: worded(rowOf(other)?.[k]) })));
  return el('div', { class: 'compare', tabindex: '0' },
    el('table', {}, el('thead', {}, el('tr', {}, el('td'), el('th', { scope: 'col', text: 'This row' }), ...heads)), el('tbody', {}, ...texts.keys.map(line))));
}

// What else was found about an example, its near duplicates to be opened.
const MOST_COPIES = 8;
function findingNotes(i) {
  const note = (title, ...words) => el('p', {}, el('b', { text: title }), ...words);
  const copyOf = (other) => button({ class: 'copy', onclick: () => showExample(other) }, pictureOf.has(other) ? thumbnail(other) : null,
    el('span', {}, `${nameOf(other)}: `, el('b', { text: givenName(other) })));
  const all = [];
  const others = copiesOf(i);
  if (others.length) {
    all.push(note(conflicting(i) ? 'Near duplicates with different labels:' : 'Near duplicates:'),
      el('div', { class: 'copies' }, ...others.slice(0, MOST_COPIES).map(copyOf)));
    if (others.length > MOST_COPIES) all.push(el('p', { text: `and ${number.format(others.length - MOST_COPIES)} more` }));
  }
  if (leakOf.has(i)) all.push(note('In the other split: ', `id ${leakOf.get(i).id}, labelled “${leakOf.get(i).label}”`));
  if (outlierScore.has(i)) all.push(note('Outlier: ', `${brief(outlierScore.get(i))} times as far from its neighbours as examples may be`));
  if (rare.has(i)) all.push(note('Rare class: ', `${plural(classCounts[given[i]], 'example')} of “${givenName(i)}”`));
  return all;
}

function drawActions(i) {
  const decided = decisions.get(i);
  const other = decided?.label && decided.label !== suggestedName(i);
  actions.relabel.firstChild.replaceChildren(...label.acceptWords(i));
  actions.relabel.hidden = agrees(i);
  actions.keep.firstChild.replaceChildren(...label.keepWords(i));
  actions.other.firstChild.textContent = other ? decisionWords(decided) : label.words.other;
  for (const [name, node] of Object.entries(actions)) node.setAttribute('aria-pressed', String(name === (other ? 'other' : decided?.name)));
}

// ---- A decision, then on to the next example ----

function review(decided) {
  const [example, position] = [currentExample(), list.current];
  byId('notice').hidden = true;
  decide([[example, decided]]);
  const now = list.items.indexOf(example); // it moves where decisions teach another ranking
  moveTo(now < 0 ? position : now + 1 < list.items.length || allReviewed() ? now + 1 : firstOpen());
  announce(`${nameOf(example)}: ${decisionWords(decided)}. ${byId('progress-text').textContent}`);
  if (!allReviewed()) return;
  closeDetail();
  notice('Done: everything in this list is reviewed. Download your decisions; the page then shows the command that applies them.');
}

function acceptSuggestion() {
  if (agrees(currentExample())) openChooser();
  else relabel(suggestedName(currentExample()));
}

const relabel = (text) => review(text === givenName(currentExample()) ? decision('keep') : decision('relabel', text));

function undoLast() {
  const example = undo();
  if (example === null) return;
  const position = list.items.indexOf(example);
  if (position >= 0) moveTo(position);
  else notice(`Undone for ${nameOf(example)}, which is not in this list.`);
  announce(`Undone: ${nameOf(example)}.`);
}

// Everything undecided in the list, at once.
const undecided = () => list.items.filter((i) => !agrees(i) && !decisions.has(i));

function acceptAll() {
  const some = undecided();
  decide(Array.from(some, (i) => [i, decision('relabel', suggestedName(i))]));
  notice(`Relabelled ${number.format(some.length)} as suggested. Undo takes all of them back.`);
}

// ---- The chooser: type to narrow, arrows to move, Enter to take ----

const chooser = byId('chooser');
const chooserInput = byId('chooser-input');
let chosen = ''; // the label so far
let offered = []; // names
let option = 0;

function openChooser() {
  if (!list.items.length) return;
  chooserInput.value = '';
  option = 0;
  chosen = decisions.get(currentExample())?.label || givenName(currentExample());
  drawOptions();
  chooser.showModal();
}

function drawOptions() {
  const wanted = chooserInput.value.trim();
  const invented = label.invent(wanted);
  const known = label.choices().filter((name) => name.toLowerCase().includes(wanted.toLowerCase())).slice(0, 100);
  offered = invented ? [...known, invented] : known;
  option = Math.max(0, Math.min(option, offered.length - 1));
  const exact = offered.findIndex((name) => name.toLowerCase() === wanted.toLowerCase());
  if (exact >= 0 && !invented) option = exact;
  byId('chooser-list').replaceChildren(...offered.map((name, k) => {
    const at = label.names.indexOf(name);
    const hint = name === invented ? `new ${label.words.field.toLowerCase()}` : label.proposes(currentExample(), at) ? label.words.hint : '';
    return el('div', {
      role: 'option', id: `option-${k}`, 'aria-selected': String(k === option), 'aria-checked': label.checked(chosen, name),
      onclick: () => takeOption(name),
    }, el('span', { text: name }), el('span', { class: 'hint', text: hint }), classKeys[at] ? el('kbd', { text: classKeys[at] }) : null);
  }));
  byId('chooser-none').hidden = offered.length > 0;
  byId('chooser-none').textContent = `No ${label.words.field.toLowerCase()} contains “${wanted}”.`;
  chooserInput.setAttribute('aria-activedescendant', `option-${option}`);
  byId('chooser-list').children[option]?.scrollIntoView({ block: 'nearest' });
}

function takeOption(name) {
  chosen = label.take(chosen, name);
  if (label.several) drawOptions();
  else saveChoice();
}

function saveChoice() {
  chooser.close();
  relabel(chosen);
}
on('chooser-save', 'click', saveChoice);
chooser.addEventListener('close', () => chooserInput.blur()); // the next key is for the page, not for a field that nobody sees

chooserInput.addEventListener('input', () => { option = 0; drawOptions(); });
chooserInput.addEventListener('keydown', (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step && event.key !== 'Enter') return;
  event.preventDefault();
  if (step) { option += step; drawOptions(); }
  else if (label.several && (event.ctrlKey || event.metaKey)) saveChoice();
  else if (offered.length) takeOption(offered[option]);
});
