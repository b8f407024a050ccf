// The example under review: what it is, what speaks against its label, and the decision.

const QUADRANT_WORDS = [
  'The model agrees with the label and is sure.',
  'The model agrees with the label, but wavers.',
  'The model prefers another label.',
  'The model disagrees with the label, but wavers.',
];

const detail = byId('detail');
const where = el('p', { class: 'where' });
const stage = el('div', { class: 'stage' });
const verdict = el('div', { class: 'verdict' });
const reason = el('p', { class: 'reason' });

function action(name, key, run) {
  const label = el('span');
  return { label, name, node: el('button', { type: 'button', class: `action ${name}`, onclick: run }, label, el('kbd', { 'aria-hidden': 'true', text: key })) };
}
const actions = {
  keep: action('keep', 'K', () => review('keep')),
  relabel: action('relabel', 'R', () => relabel()),
  ambiguous: action('ambiguous', 'A', () => review('ambiguous')),
  skip: action('skip', 'S', () => review('skip')),
  other: action('other', 'C', () => openChooser()),
};

function buildDetail() {
  const step = (text, words, distance) => el('button', { type: 'button', class: 'icon', 'aria-label': words, text, onclick: () => moveTo(list.current + distance) });
  detail.append(
    el('div', { class: 'detail-head' }, where, step('←', 'Previous example', -1), step('→', 'Next example', 1)),
    stage, verdict, reason, el('div', { class: 'actions', role: 'group', 'aria-label': 'Decision' }, ...Object.values(actions).map(({ node }) => node)));
}

function bar(words, label, probability, kind) {
  const fill = el('i');
  fill.style.width = `${Math.max(100 * probability, 0.5)}%`;
  return el('div', { class: `bar ${kind}` }, el('span', { class: 'bar-words', text: words }), el('b', { text: classes[label] }),
    el('span', { class: 'bar-share', text: percent(probability) }), el('span', { class: 'track', 'aria-hidden': 'true' }, fill));
}

function drawDetail() {
  detail.hidden = list.items.length === 0;
  if (detail.hidden) return;
  const i = currentExample();
  const same = given[i] === suggested[i];
  where.replaceChildren(el('b', { text: number.format(list.current + 1) }), ` of ${number.format(list.items.length)}`, el('span', { class: 'id', text: `id ${idOf(i)}`, title: idOf(i) }));
  stage.replaceChildren(content(i), tileOf.has(i) && plainText(i) ? el('p', { class: 'text', text: plainText(i) }) : '');
  verdict.replaceChildren(
    bar('Labelled', given[i], givenProbability(i), 'given'),
    same ? '' : bar('Looks like', suggested[i], suggestedProbability(i), 'suggested'),
    clean ? el('p', { class: 'truth' }, 'True label: ', el('b', { text: classes[clean[i]] }), clean[i] === given[i] ? ' (the given label is right)' : '') : '');
  reason.replaceChildren(marker(quadrant[i]), el('b', { text: capital(quadrants[quadrant[i]]) }), ` ${QUADRANT_WORDS[quadrant[i]]}`,
    el('span', { class: 'scores', text: `Disagreement ${brief(disagreement[i])}, rank ${number.format(bySuspicion.rank[i] + 1)}; ambiguity ${brief(ambiguity[i])}, rank ${number.format(byAmbiguity.rank[i] + 1)}` }));
  drawActions(i, same);
}

function drawActions(i, same) {
  const decision = decisions.get(i);
  const relabelled = typeof decision === 'number';
  const other = relabelled && decision !== suggested[i];
  actions.keep.label.textContent = `Keep “${classes[given[i]]}”`;
  actions.relabel.label.textContent = `Relabel as “${classes[suggested[i]]}”`;
  actions.relabel.node.hidden = same;
  actions.ambiguous.label.textContent = 'Ambiguous';
  actions.skip.label.textContent = 'Skip';
  actions.other.label.textContent = other ? `Relabelled as “${classes[decision]}”` : 'Another class …';
  const chosen = other ? 'other' : decisionName(decision);
  for (const { name, node } of Object.values(actions)) node.setAttribute('aria-pressed', String(name === chosen));
}

// The chooser of another class: type to narrow, arrows to move, Enter to take.
const chooser = byId('chooser');
const chooserInput = byId('chooser-input');
let options = [];
let option = 0;

function openChooser() {
  if (!list.items.length) return;
  chooserInput.value = '';
  drawOptions();
  chooser.showModal();
}

function drawOptions() {
  const wanted = chooserInput.value.trim().toLowerCase();
  const all = classes.map((_, k) => k).filter((k) => k !== given[currentExample()]);
  options = all.filter((k) => classes[k].toLowerCase().includes(wanted)).slice(0, 100);
  option = Math.max(0, Math.min(option, options.length - 1));
  const exact = options.findIndex((k) => classes[k].toLowerCase() === wanted);
  if (wanted && exact >= 0) option = exact;
  byId('chooser-list').replaceChildren(...options.map((k, n) => el('div', {
    role: 'option', id: `option-${k}`, 'aria-selected': String(n === option), onclick: () => takeOption(k),
  }, el('span', { text: classes[k] }), k === suggested[currentExample()] ? el('span', { class: 'hint', text: 'suggested' }) : null, classKeys[k] ? el('kbd', { text: classKeys[k] }) : null)));
  if (options.length) chooserInput.setAttribute('aria-activedescendant', `option-${options[option]}`);
  byId('chooser-list').children[option]?.scrollIntoView({ block: 'nearest' });
}

function takeOption(label) {
  chooser.close();
  relabel(label);
}

chooserInput.addEventListener('input', () => { option = 0; drawOptions(); });
chooserInput.addEventListener('keydown', (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) option += step;
  else if (event.key !== 'Enter') return;
  event.preventDefault();
  if (step) drawOptions();
  else if (options.length) takeOption(options[option]);
});
