// What a label is: one class, a set of tags, or the class that most people voted for. Only this file tells them apart:
// each shows a label and a change of it, says what can be chosen, and applies a choice. A label is kept as its text.

const MOST_CLASSES = 12; // in the matrix: a larger one cannot be read
const MOST_OPTIONS = 40; // in a select; the search finds the others
const MOST_PAIRS = 10;

class OneClass {
  several = false;
  names = classes;
  words = {
    given: 'Label', suggested: 'Looks like', withGiven: 'labelled', withSuggested: 'looks like',
    choose: 'Relabel as', field: 'Class', other: 'Other …', otherKey: 'Relabel as another class', hint: 'suggested',
  };

  quadrants = [
    'The model agrees with the label.',
    'The model agrees with the label, but another class is nearly as likely.',
    'The model prefers another class.',
    'The model prefers another class, but not by much.',
  ];

  facts() { return { classes: classes.length }; }

  // What the reader filters by: position k of `names`.
  has(i, k) { return given[i] === k; }
  proposes(i, k) { return suggested[i] === k; }
  filters() { return mostConfused(MOST_OPTIONS); }

  // A label, or the change of one, on a card.
  show(from, to) {
    const change = from === to ? [] : [' ', el('b', {}, el('span', { class: 'arrow', text: '→ ' }), ...breakable(to))];
    return el('p', { class: 'verdict-line' }, el('span', {}, ...breakable(from)), ...change);
  }

  note() { return null; } // a further line on a card
  keepWords(i) { return ['Keep ', ...nameInQuotes(givenName(i))]; }
  acceptWords(i) { return ['Relabel as ', ...nameInQuotes(suggestedName(i))]; }
  nearWords(i, name) { return ['Most similar ', ...nameInQuotes(name)]; }

  // The given and the suggested class, and what else is among the likeliest.
  evidence(i) {
    const others = likeliest(i).filter(([k]) => k !== given[i] && k !== suggested[i]).slice(0, agrees(i) ? 2 : 1);
    return [
      bar('Labelled', givenName(i), givenProbability(i), 'given'),
      ...(agrees(i) ? [] : [bar('Looks like', suggestedName(i), suggestedProbability(i), 'suggested')]),
      ...others.map(([k, share], n) => bar(n ? '' : 'Or perhaps', classes[k], share, 'other'))];
  }

  // Digits relabel at once where ten keys are enough: by name if the classes are digits, else by position.
  keys() {
    if (classes.length > 10) return [];
    const digits = classes.every((name) => /^\d$/.test(name));
    return classes.map((name, k) => (digits ? name : String((k + 1) % 10)));
  }

  // What can be chosen: the classes, and those that the reviewer has added.
  choices() {
    const added = [...decisions.values()].map((decided) => decided.label).filter(Boolean);
    return [...new Set([...classes, ...added])];
  }

  checked() { return null; }
  take(chosen, name) { return name; }

  // A class that nobody has used yet.
  invent(text) { return text && !audit.label.named && !this.choices().some((name) => name.toLowerCase() === text.toLowerCase()) ? text : null; }

  // The label in a decisions file; null where no example can have it.
  read(text) { return text || null; }

  overview() {
    const chosen = mostConfused(MOST_CLASSES);
    const some = chosen.length < classes.length ? `The ${chosen.length} most confused of ${classes.length} classes. ` : '';
    byId('matrix-hint').textContent = `${some}Rows: the given label; columns: what it looks like. Click a cell for its examples.`;
    byId('matrix').replaceChildren(buildMatrix(chosen));
    byId('pairs').replaceChildren(buildTable(['Label → looks like', 'Examples'], confusions.slice(0, MOST_PAIRS).map(({ row, column, times }) => [
      pairButton(row, column, { class: 'quiet' }, ...breakable(classes[row]), ' → ', ...breakable(classes[column])), number.format(times)])));
    byId('pairs-card').hidden = confusions.length === 0;
  }
}

class TagSet extends OneClass {
  several = true;
  names = audit.label.names;
  words = {
    given: 'Has tag', suggested: 'Tag to change', withGiven: 'with', withSuggested: 'to change',
    choose: 'Edit tags', field: 'Tag', other: 'Edit tags …', otherKey: 'Edit the tags', hint: 'change suggested',
  };

  quadrants = [
    'The model agrees with the tags.',
    'The model agrees with the tags, but is unsure of one.',
    'The model would change a tag.',
    'The model would change a tag, but is not sure.',
  ];

  sets = new Map();
  worst = unpack(audit.label.worst);

  // The tags of a text.
  split(text) {
    if (!this.sets.has(text)) this.sets.set(text, new Set(text === audit.label.none ? [] : text.split(audit.label.between)));
    return this.sets.get(text);
  }

  write(tags) { return this.names.filter((tag) => tags.has(tag)).join(audit.label.between) || audit.label.none; }
  lacks(text, other) { return [...this.split(other)].filter((tag) => !this.split(text).has(tag)); }
  facts() { return { tags: this.names.length }; }
  has(i, k) { return this.split(givenName(i)).has(this.names[k]); }
  proposes(i, k) { return this.has(i, k) !== this.split(suggestedName(i)).has(this.names[k]); }
  filters() { return this.names.map((_, k) => k); }

  chips(text) {
    const tags = this.split(text).size ? [...this.split(text)] : [audit.label.none];
    return tags.map((tag) => el('span', { class: 'tag', text: tag }));
  }

  changes(from, to) {
    const chip = (tag, sign, kind) => el('span', { class: `tag ${kind}` }, `${sign}\u2009`, el('span', {}, ...breakable(tag)));
    return [...this.lacks(from, to).map((tag) => chip(tag, '+', 'add')), ...this.lacks(to, from).map((tag) => chip(tag, '−', 'remove'))];
  }

  show(from, to) { return el('p', { class: 'verdict-line' }, ...(from === to ? this.chips(from) : this.changes(from, to))); }
  keepWords() { return ['Keep the tags']; }
  acceptWords(i) { return ['Accept ', ...this.changes(givenName(i), suggestedName(i))]; }

  // The neighbours agree with the example on its worst tag, or do not.
  nearWords(i, name) {
    const worst = this.names[this.worst[i]];
    const has = this.split(givenName(i)).has(worst) === (name === givenName(i));
    return [`Most similar ${has ? 'with' : 'without'} `, ...nameInQuotes(worst)];
  }

  evidence(i) {
    const bars = likeliest(i).map(([k, share]) => {
      const should = this.has(i, k) !== this.proposes(i, k);
      const words = this.proposes(i, k) ? (should ? 'Add' : 'Remove') : (should ? 'Has' : 'Lacks');
      return bar(words, this.names[k], share, this.proposes(i, k) ? 'suggested' : 'other');
    });
    return [el('p', { class: 'tag-line' }, ...this.chips(givenName(i))), el('p', { class: 'hint', text: 'How likely these tags are:' }), ...bars];
  }

  keys() { return []; }
  choices() { return this.names; }
  checked(chosen, name) { return String(this.split(chosen).has(name)); }

  take(chosen, name) {
    const tags = new Set(this.split(chosen));
    if (!tags.delete(name)) tags.add(name);
    return this.write(tags);
  }

  read(text) {
    const tags = this.split(text);
    return text && [...tags].every((tag) => this.names.includes(tag)) ? this.write(tags) : null;
  }

  // How many examples have each tag, should have it, and should not; those that change most first.
  overview() {
    const counts = new Map(this.names.map((name, k) => [name, { name, k, has: 0, add: 0, remove: 0 }]));
    for (let i = 0; i < count; i++) {
      for (const tag of this.split(givenName(i))) counts.get(tag).has++;
      for (const tag of this.lacks(givenName(i), suggestedName(i))) counts.get(tag).add++;
      for (const tag of this.lacks(suggestedName(i), givenName(i))) counts.get(tag).remove++;
    }
    const most = [...counts.values()].sort((a, b) => b.add + b.remove - a.add - a.remove || a.k - b.k).slice(0, MOST_OPTIONS);
    byId('matrix').replaceChildren(buildTable(['Tag', 'Examples', 'To add', 'To remove'], most.map(({ name, k, has, add, remove }) => [
      pairButton(-1, k, { class: 'quiet', text: name }), ...[has, add, remove].map((n) => number.format(n))])));
    byId('matrix-title').textContent = 'Which tags would change';
    const some = most.length < counts.size ? `The ${most.length} of ${counts.size} tags that would change most. ` : '';
    byId('matrix-hint').textContent = `${some}Click a tag for its examples.`;
    byId('pairs-card').hidden = true;
  }
}

// The class that most people chose: their votes stand on every card, and the page says how good everybody is.
class Votes extends OneClass {
  mark(i, k) { return given[i] === k ? 'tag' : 'tag other'; }

  note(i) {
    const times = new Map();
    for (const [, k] of audit.label.votes[i]) times.set(k, (times.get(k) ?? 0) + 1);
    const most = [...times].sort((a, b) => b[1] - a[1]);
    return el('p', { class: 'votes' }, ...most.map(([k, some]) => el('span', { class: this.mark(i, k) },
      ...breakable(classes[k]), el('i', { text: some > 1 ? ` × ${some}` : '' }))));
  }

  voters(i) {
    return el('p', { class: 'votes' }, ...audit.label.votes[i].map(([who, k]) => el('span', { class: this.mark(i, k) },
      el('i', { text: audit.label.names[who] }), ` ${classes[k]}`)));
  }

  evidence(i) { return [...super.evidence(i), this.voters(i)]; }

  overview() {
    super.overview();
    byId('annotators').hidden = byId('annotators-link').hidden = false;
    const people = audit.summary.annotators;
    byId('people').replaceChildren(buildTable(['Annotator', 'Right', 'Votes', 'κ', 'Counts as', 'Takes'], people.map((one) => {
      const interval = el('span', { class: 'hint', text: ` ${percent(one.low)} to ${percent(one.high)}` });
      return [one.annotator, el('span', {}, el('b', { text: percent(one.quality) }), interval),
        number.format(one.votes), one.kappa === null ? '–' : brief(one.kappa), brief(one.weight), el('span', { class: 'hint', text: one.confusions || '–' })];
    })));
    const { again } = audit.label;
    byId('again').replaceChildren(again.length ? '' : 'None: the consensus is sure of every example.', ...again.map((row) => this.againLine(...row)));
  }

  againLine(i, k, share, who) {
    const words = el('span', { class: 'again-words' }, el('b', { text: nameOf(i) }),
      el('span', { class: 'hint', text: ` ${sureWords(share)} ${classes[k]}` }), this.voters(i));
    return button({ class: 'again', onclick: () => showExample(i) }, pictureOf.has(i) ? thumbnail(i) : null, words,
      el('span', {}, 'ask ', el('b', { text: who })));
  }
}

const label = new { class: OneClass, tags: TagSet, votes: Votes }[audit.label.kind]();

// ---- What they draw with ----

function bar(words, name, probability, kind) {
  const fill = el('i');
  fill.style.width = `${Math.max(100 * probability, 0.5)}%`;
  return el('div', { class: `bar ${kind}` }, el('span', { class: 'bar-words', text: words }), el('b', {}, ...breakable(name)),
    el('span', { class: 'bar-share', text: sureWords(probability) }), el('span', { class: 'track', 'aria-hidden': 'true' }, fill));
}

function buildTable(titles, rows) {
  const cells = ([first, ...others]) => el('tr', {}, el('th', { scope: 'row' }, first), ...others.map((cell) => el('td', {}, cell)));
  return el('table', { class: 'people' }, el('thead', {}, el('tr', {}, ...titles.map((text) => el('th', { scope: 'col', text })))),
    el('tbody', {}, ...rows.map(cells)));
}

// At most so many classes, those that are confused most, in their usual order.
function mostConfused(most) {
  const all = classes.map((_, k) => k);
  if (all.length <= most) return all;
  const errors = new Float64Array(classes.length);
  for (const { row, column, times } of confusions) { errors[row] += times; errors[column] += times; }
  return all.sort((a, b) => errors[b] - errors[a] || a - b).slice(0, most).sort((a, b) => a - b);
}

// A button that lists the examples of one label and one suggestion; −1 is any.
const pairButton = (row, column, properties, ...children) => button({
  'data-row': row, 'data-column': column, onclick: () => choosePair(row, column), ...properties }, ...children);

function matrixCell(row, column) {
  const times = pairCounts.get(row * classes.length + column) ?? 0;
  const words = `labelled ${classes[row]}, ${row === column ? 'and looks it' : `looks like ${classes[column]}`}: ${times}`;
  const node = pairButton(row, column, {
    class: row === column ? 'cell same' : 'cell', title: words, 'aria-label': words, tabindex: -1, text: times ? number.format(times) : '' });
  if (row !== column && times) node.style.setProperty('--strength', `${Math.round(8 + 67 * (times / confusions[0].times) ** 0.75)}%`);
  return el('td', {}, node);
}

function buildMatrix(chosen) {
  const heading = (k, scope) => el('th', { scope, title: classes[k] }, el('span', {}, ...breakable(classes[k])));
  const longest = Math.max(...chosen.map((k) => classes[k].length));
  const looks = longest < 4 ? 'short' : chosen.length > 5 ? 'upright' : '';
  const table = el('table', { class: `matrix ${looks}` },
    el('caption', { class: 'live', text: 'Rows: the given label. Columns: the label it looks like.' }),
    el('thead', {}, el('tr', {}, el('td'), ...chosen.map((k) => heading(k, 'col')))),
    el('tbody', {}, ...chosen.map((row) => el('tr', {}, heading(row, 'row'), ...chosen.map((column) => matrixCell(row, column))))));
  const cells = [...table.querySelectorAll('button')];
  cells[0].tabIndex = 0;
  table.addEventListener('keydown', (event) => moveInMatrix(event, cells, chosen.length));
  return table;
}

// One stop for the Tab key, arrows inside.
function moveInMatrix(event, cells, width) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
  const target = cells[cells.indexOf(event.target) + step];
  if (!target) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}
