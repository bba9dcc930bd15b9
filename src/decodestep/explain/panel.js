// One run's panel: the steps of the chosen token, what each did, and the draw.
const make = (tag, attributes, ...children) => {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (name.startsWith('on')) e[name] = value; else if (value !== false && value !== null) e.setAttribute(name, value);
  e.append(...children.filter(c => c !== null && c !== ''));
  return e;
};
const percent = p => p === 0 ? '0%' : p < 0.0001 ? '<0.01%' : (100 * p).toFixed(2) + '%';
const number = v => v === null ? '' : Math.abs(v) >= 3.4e38 ? '∞' : Math.abs(v) >= 1e5 ? v.toExponential(2) : v.toFixed(2);
const logarithm = v => v < -3.4e38 ? '−∞' : v.toFixed(3);
const tokens = n => n === 1 ? '1 token' : `${n.toLocaleString('en')} tokens`;
// A text whose control and format characters, which cannot be seen or turn the order of what is beside them, are code points:
// ‹U+202E›. The two joiners stay: words and emoji are written with them.
const coded = text => text.replace(/[^\P{C}\n\t\u200c\u200d]/gu, c => `‹U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}›`);
// A token with visible marks for leading and trailing spaces, newlines and tabs; isolated (U+2068, U+2069), so that one that is
// written from right to left leaves the sentence around it in order.
const visible = text => `\u2068${coded(text.replace(/^ +| +$/g, m => '␣'.repeat(m.length)).replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/\r/g, '␍'))}\u2069`;
const SHOWN = 15;

class Panel {
  constructor(run, index, data) {
    this.run = run; this.data = data; this.stage = run.plan.length + 1; this.all = false; this.rows = new Map();
    this.letter = data.runs.length > 1 ? 'AB'[index] : '';
    this.names = ['model', ...run.plan.map((p, i) => `${i + 1} ${data.described[p.name].name}`), 'draw'];
    this.stages = make('div', {class: 'stages', role: 'toolbar', 'aria-label': `steps${this.letter && ' of ' + this.letter}`});
    this.names.forEach((name, i) => this.stages.append(make('button', {onclick: () => this.show(this.at, i)}, name)));
    this.stages.onkeydown = e => this.key(e);
    this.facts = make('p', {class: 'faint'});
    this.note = make('div', {class: 'note'});
    this.caption = make('caption');
    this.head = make('thead'); this.body = make('tbody');
    this.more = make('button', {onclick: () => { this.all = !this.all; this.show(this.at, this.stage); }});
    this.play = make('button', {onclick: () => this.run_through()}, '▶ step by step');
    this.element = make('article', {class: `panel ${'ab'[index]}`},
      make('h3', {}, (this.letter && `${this.letter}: `) + settingsOf(run)), this.facts,
      make('div', {class: 'line'}, this.stages, this.play), this.note,
      make('div', {class: 'scroller', tabindex: 0, role: 'region', 'aria-label': `table of tokens${this.letter && ' of ' + this.letter}`},
        make('table', {}, this.caption, this.head, this.body)), make('div', {class: 'line'}, this.more));
  }
  key(e) {
    const to = {ArrowRight: this.stage + 1, ArrowLeft: this.stage - 1, Home: 0, End: this.names.length - 1}[e.key];
    if (to === undefined || e.ctrlKey || e.altKey || e.metaKey || to < 0 || to >= this.names.length) return;
    e.preventDefault(); this.show(this.at, to); this.stages.children[to].focus();
  }
  run_through() {
    clearInterval(this.timer);
    if (this.timer) { this.timer = null; this.play.textContent = '▶ step by step'; return; }
    this.play.textContent = '❚❚ stop'; this.show(this.at, 0);
    this.timer = setInterval(() => {
      if (this.stage + 1 < this.names.length) this.show(this.at, this.stage + 1);
      if (this.stage + 1 >= this.names.length) { clearInterval(this.timer); this.timer = null; this.play.textContent = '▶ step by step'; }
    }, 1100);
  }
  word(id) { return visible(this.data.words[id] ?? String(id)); }
  show(at, stage) {
    const moved = at !== this.at;
    this.at = at; this.stage = stage;
    const token = this.run.tokens[at];
    this.element.classList.toggle('ended', !token);
    [...this.stages.children].forEach((b, i) => { b.setAttribute('aria-pressed', i === stage); b.tabIndex = i === stage ? 0 : -1; });
    if (!token) {
      this.facts.textContent = `The text has ended${this.run.reason ? ` (${this.run.reason})` : ''}: it has ${tokens(this.run.tokens.length)}.`;
      this.note.textContent = ''; this.body.textContent = ''; this.head.textContent = ''; this.caption.textContent = '';
      this.rows.clear(); this.more.hidden = true; return;
    }
    this.facts.textContent = token.token < 0 ? 'No candidate is left: every token is forbidden.'
      : `${this.word(token.token)}: the model's probability ${percent(Math.exp(token.raw))} (log ${logarithm(token.raw)}), after the steps `
        + `${percent(Math.exp(token.processed))} (log ${logarithm(token.processed)}); position ${token.position}`
        + (this.run.seed === null ? ', greedy' : `, seed ${this.run.seed}`)
        + (this.run.accepted.includes(at) ? '. It came free: drafted ahead, and drawn all the same.' : '');
    if (moved) { this.body.textContent = ''; this.rows.clear(); }
    this.explain(token); this.table(token);
    marked(this);
  }
  // The description of the step, and its effect on this token.
  explain(token) {
    const i = this.stage - 1, plan = this.run.plan[i], step = token.steps[i], did = [];
    this.note.textContent = '';
    if (this.stage === 0) did.push(`The model's own distribution over ${tokens(token.start.left)}.`);
    else if (!plan) did.push(...this.drawn(token));
    else {
      const words = this.data.described[plan.name];
      const link = make('a', {href: `#${plan.name}`}, words.name);
      this.note.append(make('p', {}, link, `: ${words.text} `, make('code', {}, words.formula)), make('p', {class: 'faint'}, plan.text));
      const before = i ? token.steps[i - 1].left : token.start.left;
      if (step.dropped) did.push(`It dropped ${step.dropped.toLocaleString('en')} of ${tokens(before)} and kept `
        + `${step.left.toLocaleString('en')}, which had ${percent(step.mass)} of the probability.`);
      if (step.touched) did.push(`It changed ${step.touched === step.left ? 'every score' : step.touched === 1 ? 'one score' : `the scores of ${tokens(step.touched)}`}.`);
      if (!step.dropped && !step.touched) did.push('It changed nothing here.');
      if (step.threshold) did.push(thresholdWords(step.threshold));
      if (step.tied) did.push(`${step.tied} tokens tie at the cut${step.ties.length ? ': ' + step.ties.slice(0, 6).map(t => this.word(t)).join(', ') : ''}.`);
      did.push(`Entropy ${step.entropy.toFixed(2)} nats.`);
      const causes = Object.entries(step.causes);
      if (causes.length) did.push(`Because of what is marked in the text: ${causes.slice(0, 8).map(([t]) => this.word(t)).join(', ')}`
        + (causes.length > 8 ? ` and ${causes.length - 8} more.` : '.'));
    }
    this.note.append(make('p', {}, did.join(' ')));
  }
  drawn(token) {
    if (token.token < 0) return ['There is nothing to draw.'];
    if (this.run.seed === null) return ['Greedy: the highest score is taken, the lowest id among equals. There is no noise.'];
    const race = this.race(token).filter(r => r.total !== null).sort((a, b) => b.total - a.total);
    const second = race.find(r => r.id !== token.token);
    return ['A race: every candidate starts from its log-probability, noise that follows from seed, position and token is added, '
      + 'and the highest sum is drawn.',
      second ? `The next is ${this.word(second.id)}, ${(race[0].total - second.total).toFixed(2)} behind.` : 'It was the only candidate.'];
  }
  race(token) {
    const starts = logProbabilitiesAt(token, this.run.plan.length);
    return token.ids.map((id, i) => {
      const start = starts[i];
      const noise = this.run.seed === null ? 0 : token.noise[i];
      return {id, start, noise, total: start === null ? null : start + noise};
    });
  }
  table(token) {
    const last = this.run.plan.length, draw = this.stage === last + 1, stage = Math.min(this.stage, last);
    const p = probabilitiesAt(token, stage), scores = scoresAt(token, stage), before = stage ? probabilitiesAt(token, stage - 1) : p;
    const step = draw ? null : token.steps[stage - 1], was = stage ? scoresAt(token, stage - 1) : scores;
    const race = draw ? this.race(token) : null, greedy = this.run.seed === null;
    let order = token.ids.map((id, i) => i);
    if (draw) order.sort((a, b) => (race[b].total ?? -1e9) - (race[a].total ?? -1e9));
    if (draw) order = order.filter(i => race[i].total !== null);
    const count = order.length;
    const drawnAt = token.ids.indexOf(token.token);
    const seen = new Set(this.all ? order : order.slice(0, SHOWN));
    const lastKept = step && step.dropped ? order.findLastIndex(i => scores[i] !== null) : -1;
    if (lastKept >= SHOWN - 2) order.slice(lastKept - 1, lastKept + 4).forEach(i => seen.add(i));  // the rows around a cut
    if (order.includes(drawnAt)) seen.add(drawnAt);
    if (step) Object.keys(step.causes).slice(0, 8).forEach(t => seen.add(token.ids.indexOf(+t)));
    if (step && step.touched < step.left) token.ids.forEach((id, i) => { if (scores[i] !== was[i] && seen.size < SHOWN + 8) seen.add(i); });
    const whole = order;
    order = order.filter(i => seen.has(i));
    const gaps = new Set(order.filter((i, n) => n && whole[whole.indexOf(i) - 1] !== order[n - 1]));
    this.more.hidden = count <= SHOWN; this.more.textContent = this.all ? 'fewer tokens' : `all ${count} tokens that the page holds`;
    this.more.setAttribute('aria-expanded', this.all);
    const others = stage ? token.steps[stage - 1].others : token.start.others, left = stage ? token.steps[stage - 1].left : token.start.left;
    this.caption.textContent = `${this.names[this.stage]}: ${tokens(left)} left; those that the page does not hold have ${percent(others)}`;
    this.head.replaceChildren(make('tr', {}, make('th', {scope: 'col'}, 'token'), make('th', {scope: 'col'}, !draw ? 'probability' : greedy ? 'log p' : 'log p, then the noise'),
      make('th', {scope: 'col', class: 'number'}, !draw ? '%' : greedy ? 'log p' : 'sum'), make('th', {scope: 'col', class: 'number score'}, draw ? 'noise' : 'score'),
      make('th', {scope: 'col'}, 'what happened')));
    const top = Math.max(...p, ...before, 1e-9), lit = this.edge(token, step, order, scores);
    let low = 0, high = 1;
    if (draw) { const all = order.flatMap(i => [race[i].start, race[i].total]); low = Math.min(...all); high = Math.max(...all); if (high - low < 1e-6) high = low + 1; low -= (high - low) * .04; }
    const place = v => 100 * (v - low) / (high - low);
    const kept = new Set(order);
    for (const [i, row] of this.rows) if (!kept.has(i)) { row.remove(); this.rows.delete(i); }
    for (const i of order) {
      const id = token.ids[i], gone = scores[i] === null, fresh = gone && was[i] !== null;
      let row = this.rows.get(i);
      if (!row) {
        row = make('tr', {}, make('th', {scope: 'row', title: `token ${id}`}, this.word(id)), make('td', {class: 'bar'}, make('i')),
          make('td', {class: 'number'}), make('td', {class: 'number score'}), make('td', {class: 'what'}));
        this.rows.set(i, row);
      }
      this.body.append(row);
      row.className = [gone && 'gone', draw && id === token.token && 'drawn', i === lit.edge && 'edge', gaps.has(i) && 'gap'].filter(Boolean).join(' ');
      const [, bar, value, score, what] = row.children, main = bar.firstChild;
      bar.querySelectorAll('u,b,.ghost').forEach(e => e.remove());
      main.className = draw ? `noise${race[i].noise < 0 ? ' less' : ''}` : '';
      if (draw) {
        const a = place(race[i].start), b = place(race[i].total);
        main.style.width = `${Math.abs(b - a)}%`; main.style.marginLeft = `${Math.min(a, b)}%`;
        bar.append(make('b', {style: `left:${a}%`}));
        value.textContent = race[i].total.toFixed(2); score.textContent = greedy ? '–' : race[i].noise.toFixed(2);
        what.textContent = id === token.token ? greedy ? 'taken' : 'drawn' : greedy ? '' : `${(Math.max(...race.map(r => r.total ?? -1e9)) - race[i].total).toFixed(2)} behind`;
        continue;
      }
      main.style.width = `${100 * p[i] / top}%`; main.style.marginLeft = '0';
      if (stage && Math.abs(before[i] - p[i]) > top / 400) bar.append(make('i', {class: 'ghost', style: `width:${100 * before[i] / top}%`}));
      if (lit.line !== null && lit.line <= top) bar.append(make('u', {style: `left:${100 * lit.line / top}%`}));
      value.textContent = gone ? '–' : percent(p[i]); score.textContent = gone ? '−∞' : number(scores[i]);
      what.replaceChildren(...this.happened(token, step, i, fresh, was, scores));
    }
  }
  // The row below which a dashed line marks the cut, and the threshold as a probability; both before the step.
  edge(token, step, order, scores) {
    const found = {edge: -1, line: null};
    if (!step || !step.dropped || !step.threshold) return found;
    if (step.threshold[0] === 'probability') found.line = step.threshold[1];
    const kept = order.filter(i => scores[i] !== null), last = kept.at(-1);
    if (['score', 'mass', 'probability'].includes(step.threshold[0]) && order.indexOf(last) === kept.length - 1 && kept.length < order.length) found.edge = last;
    return found;
  }
  happened(token, step, i, fresh, was, scores) {
    const id = token.ids[i], said = [];
    if (fresh) said.push(make('span', {class: 'cutword'}, ['mask', 'force'].includes(this.run.plan[this.stage - 1].kind) ? 'forbidden' : 'cut'));
    else if (scores[i] === null) {
      const by = token.steps.slice(0, this.stage).findLastIndex((_, n) => scoresAt(token, n)[i] !== null && scoresAt(token, n + 1)[i] === null);
      said.push(by < 0 ? 'never a candidate' : `cut by ${this.names[by + 1]}`);
    } else if (step && step.touched < step.left && was[i] !== scores[i])
      said.push(was[i] === null ? 'allowed again' : `${scores[i] > was[i] ? '+' : '−'}${Math.abs(scores[i] - was[i]).toFixed(2)}`);
    if (step && step.ties.includes(id)) said.push(make('span', {class: 'tie'}, 'tie at the cut'));
    if (step && step.causes[id]) said.push(`×${step.causes[id].count} in the text`);
    if (id === token.token) said.push(this.run.seed === null ? 'taken' : 'drawn');
    return said.flatMap((s, n) => n ? [', ', s] : [s]);
  }
}
const settingsOf = run => [...Object.entries(run.settings).filter(([n]) => n !== 'do_sample').map(([n, v]) => `${n} ${coded(v)}`),
  run.greedy ? 'greedy' : `seed ${run.seed}`].join(', ');
const thresholdWords = ([quantity, value]) => ({
  score: `The bound: a score of ${value.toFixed(3)}.`, probability: `The bound: a probability of ${percent(value)}.`,
  mass: `The bound: a total of ${percent(value)}.`, surprise: `The bound: ${value.toFixed(3)} nats from the entropy.`,
  entropy: `The bound: ${value.toFixed(3)} nats of entropy.`}[quantity]);
