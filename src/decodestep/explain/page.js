// The page: the texts with their tokens, the panels, the sliders.
const data = JSON.parse(document.getElementById('data').textContent), $ = id => document.getElementById(id);
const most = Math.max(...data.runs.map(r => r.tokens.length)), texts = [];
const panels = data.runs.map((run, i) => new Panel(run, i, data));
let at = 0;

$('about').append(`${data.model} after “`, make('bdi', {}, coded(data.prompt)), '”');
data.runs.forEach((run, r) => {
  const other = data.runs.length > 1 ? data.runs[1 - r] : null, letter = data.runs.length > 1 ? 'AB'[r] : '';
  const parts = other ? run.tokens.findIndex((token, i) => other.tokens[i]?.token !== token.token) : -1;  // where the texts diverge
  const prompt = make('span', {class: 'prompt'}, ...run.prompt.map((id, i) => make('span', {'data-at': i}, coded(run.pieces[i]))));
  const shown = run.tokens.map((token, i) => run.pieces[run.prompt.length + i] ?? '∅');
  const tokens = run.tokens.map((token, i) => make('button', {
    class: 'token' + (i === parts ? ' other' : '') + (run.accepted.includes(i) ? ' drafted' : ''), 'data-at': run.prompt.length + i,
    style: `--rare:${Math.min(1, -(token.raw ?? -9) / 7).toFixed(2)}`, tabindex: -1, onclick: () => go(i),
    'aria-label': `token ${i + 1}: ${visible(data.words[token.token] ?? 'none')}` + (token.raw === null ? '' : `, ${percent(Math.exp(token.raw))} by the model`) + (run.accepted.includes(i) ? ', drafted' : ''),
  }, coded(shown[i]).replace(/^$/, '·').replace(/\n/g, '⏎')));
  const box = make('div', {class: `text ${'ab'[r]}`, role: 'group', 'aria-label': `text${letter && ' ' + letter}`},
    letter && make('span', {class: 'who'}, letter), prompt,
    ...tokens.flatMap((token, i) => shown[i].endsWith('\n') ? [token, make('br')] : [token]));
  box.onkeydown = e => {
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1}[e.key];
    if (to === undefined || e.ctrlKey || e.altKey || e.metaKey || to < 0 || to >= tokens.length) return;
    e.preventDefault(); go(to); tokens[to].focus();
  };
  $('texts').append(box); texts.push({box, tokens});
});
panels.forEach(panel => $('panels').append(panel.element));
if (data.runs.some(run => run.accepted.length)) $('drafts').append(make('span', {class: 'drafted'}, 'Green, with a line below'), ': '
  + `${data.runs.map(run => `${run.accepted.length} of ${tokens(run.tokens.length)}`).join(' and ')} came free; drafted ahead, they ran together with an earlier one.`);

// Marks the spans of the text that caused the panel's step to act.
function marked(panel) {
  const box = texts[panels.indexOf(panel)].box;
  box.querySelectorAll('.cause').forEach(e => e.classList.remove('cause'));
  const step = panel.run.tokens[panel.at]?.steps[panel.stage - 1];
  for (const [from, to] of Object.values(step?.causes ?? {}).flatMap(cause => cause.latest))
    for (let i = from; i < to; i++) box.querySelector(`[data-at="${i}"]`)?.classList.add('cause');
}
function go(to) {
  at = Math.max(0, Math.min(most - 1, to));
  texts.forEach(({tokens}) => tokens.forEach((t, i) => { t.setAttribute('aria-current', i === at); t.tabIndex = i === Math.min(at, tokens.length - 1) ? 0 : -1; }));
  for (const {box, tokens} of texts) if (tokens[at]) {
    const b = box.getBoundingClientRect(), t = tokens[at].getBoundingClientRect();
    if (t.top < b.top || t.bottom > b.bottom) box.scrollTop += t.top - b.top - b.height / 2;
  }
  $('scrub').value = at; $('where').textContent = `token ${at + 1} of ${most}`; $('before').disabled = at === 0; $('after').disabled = at === most - 1;
  panels.forEach(panel => panel.show(at, panel.stage));
  $('said').textContent = `token ${at + 1}: ${panels.map(p => p.facts.textContent).join(' ')}`;
  tries.fill();
}

// The sliders: other settings on the chosen token of one run.
const LIMITS = {temperature: [0.05, 2, 0.05], top_k: [0, 100, 1], top_p: [0, 1, 0.01], min_p: [0, 1, 0.01]};
const tries = {
  run: 0, settings: {}, inputs: {},
  build() {
    const lines = make('div', {class: 'tries'});
    for (const [name, [min, max, step]] of Object.entries(LIMITS)) {
      const range = make('input', {type: 'range', min, max, step, id: `try-${name}`, 'aria-label': name});
      const exact = make('input', {type: 'number', min, step: name === 'top_k' ? 1 : 'any', id: `number-${name}`, 'aria-label': `${name} as a number`});
      range.oninput = () => this.set(name, +range.value);
      exact.oninput = () => { if (exact.value !== '' && +exact.value >= min && (name === 'temperature' || name === 'top_k' || +exact.value <= max)) this.set(name, +exact.value, true); };
      this.inputs[name] = [range, exact];
      lines.append(make('label', {}, make('span', {}, name.replace('_', '-')), range, exact));
    }
    this.choice = make('select', {'aria-label': 'which run', onchange: e => { this.run = +e.target.value; this.reset(); }},
      ...data.runs.map((run, i) => make('option', {value: i}, `${'AB'[i]}: ${settingsOf(run)}`)));
    this.choice.hidden = data.runs.length < 2;
    this.said = make('p', {role: 'status', id: 'try-said'});
    this.without = make('p', {class: 'faint'});
    this.body = make('tbody');
    const back = make('button', {onclick: () => this.reset()}, 'as recorded');
    $('try').append(make('div', {class: 'line'}, this.choice, back), lines, this.without, this.said,
      make('div', {class: 'scroller', tabindex: 0, role: 'region', 'aria-label': 'other settings'}, make('table', {},
        make('thead', {}, make('tr', {}, ...['token', 'with these settings', '%', 'as recorded', 'drawn'].map((t, i) => make('th', {scope: 'col', class: [null, null, 'number', 'number', 'what'][i]}, t)))), this.body)));
    this.reset(false);
  },
  reset(fill = true) {
    for (const name in LIMITS) this.settings[name] = data.runs[this.run].what_if[name];
    this.greedy = data.runs[this.run].greedy;
    for (const name in LIMITS) this.show(name, false);
    if (fill) this.fill();
  },
  set(name, value, typed) { this.settings[name] = value; this.show(name, typed); this.fill(); },
  show(name, typed) {
    const [range, exact] = this.inputs[name], [, max] = LIMITS[name];
    range.value = Math.min(this.settings[name], max);
    if (!typed) exact.value = +this.settings[name].toPrecision(6);
  },
  fill() {
    const run = data.runs[this.run], token = run.tokens[at];
    this.body.textContent = ''; this.said.textContent = '';
    if (!token) return;
    const result = whatIf(token, this.settings, run.what_if.order, data.temperatures, this.greedy);
    const left = run.plan.slice(token.entry).map(p => p.name).filter(n => !/^(Temperature|TopK|TopP|MinP)LogitsWarper$/.test(n)).map(n => data.described[n].name);
    this.without.textContent = left.length ? `Not included here: ${left.join(', ')}.` : '';
    const word = id => id === null || id < 0 ? 'none' : visible(data.words[id] ?? String(id));
    this.said.replaceChildren(make('span', {class: result.exact ? 'sure' : 'unsure'}, result.exact ? '✓ exact: ' : `≈ about: ${result.reasons.join('; ')}. `),
      result.exact ? `${tokens(result.left)} left, ${this.greedy ? 'the highest is' : `seed ${run.seed} draws`} ${word(result.token)}; tokens that the page does not hold: ${percent(result.others)}` : '');
    const now = probabilitiesAt(token, run.plan.length), top = Math.max(...result.probabilities, ...now, 1e-9);
    const order = token.ids.map((id, i) => i).sort((a, b) => result.probabilities[b] - result.probabilities[a] || now[b] - now[a]);
    const shown = order.filter((i, n) => n < 12 || token.ids[i] === result.token);
    shown.forEach((i, n) => {
      const drawn = result.token === token.ids[i];
      this.body.append(make('tr', {class: (drawn ? 'drawn' : result.kept[i] ? '' : 'gone') + (n && order[n] !== i ? ' gap' : '')}, make('th', {scope: 'row'}, word(token.ids[i])),
        make('td', {class: 'bar'}, make('i', {style: `width:${100 * result.probabilities[i] / top}%`}), now[i] ? make('i', {class: 'ghost', style: `width:${100 * now[i] / top}%`}) : ''),
        make('td', {class: 'number'}, result.kept[i] ? (result.exact ? '' : '≈ ') + percent(result.probabilities[i]) : '–'),
        make('td', {class: 'number'}, now[i] ? percent(now[i]) : '–'), make('td', {class: 'what'}, drawn ? this.greedy ? 'taken' : 'drawn' : '')));
    });
  },
};
if (!Object.keys(data.described).length) $('words').append(make('div', {}, make('dd', {}, "None: the model's scores are taken as they are.")));
for (const [name, words] of Object.entries(data.described))
  $('words').append(make('div', {id: name}, make('dt', {}, words.name), make('dd', {}, words.text + ' ', make('code', {}, words.formula),
    ' ', words.link ? make('a', {href: words.link}, 'its page') : make('span', {class: 'faint'}, name))));
$('scrub').max = most - 1;
$('scrub').oninput = e => go(+e.target.value);
$('before').onclick = () => go(at - 1); $('after').onclick = () => go(at + 1);
tries.build();
go(0);
