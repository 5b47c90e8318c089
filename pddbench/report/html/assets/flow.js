// What happened when: swim-lanes with hand-offs, gaps over tokens, the run over time.
function lanes(data) {
  const names = data.arms.filter(a => data.lanes.arms[a]);
  if (!names.length) return;
  const per = 14;
  const sessions = [...new Set(data.lanes.arms[names[0]].session)];
  const pages = Math.max(1, Math.ceil(sessions.length / per));
  const values = Array.from({length: pages}, (_, i) => [String(i), `sessions ${i * per + 1}–${Math.min(sessions.length, (i + 1) * per)}`]);
  const kinds = [['wait', 'waiting for the first token'], ['rld', 'streamed by the relay (RLD)'], ['flow', 'streamed by (main) decode'], ['lost', 'failed']];
  new Figure('lanes', {
    title: 'Requests, lane by lane',
    series: kinds.map(([name, label]) => ({name, label, style: 'k-' + name})),
    choices: [{name: 'arm', label: 'arm', values: [...names].reverse().map(a => [a, a])}, {name: 'page', label: 'sessions', values}],
    height: () => per * 22 + EDGE.top + EDGE.bottom,
    draw(fig) {
      const d = data.lanes.arms[fig.chosen.arm], from = Number(fig.chosen.page) * per;
      const shown = sessions.slice(from, from + per);
      const picked = d.id.map((_, i) => i).filter(i => shown.includes(d.session[i]));
      if (!picked.length) return fig.empty('no requests');
      // all arms on one axis, so that switching between them shows what is slower
      const all = names.flatMap(a => data.lanes.arms[a].session.flatMap((s, i) => shown.includes(s) ? [data.lanes.arms[a].due[i], data.lanes.arms[a].end[i]] : []));
      const [low, high] = extent(all);
      const xs = linear(low, high, v => plain(v) + ' s', fig.width < 500 ? 4 : 9);
      const ys = {at: i => 1 - (i + 0.5) / per, ticks: shown.map((s, i) => [i, s.length > 7 ? s.slice(0, 6) + '…' : s])};
      const area = fig.axes(xs, ys, {xLabel: 'time since the start'});
      const ticks = draw('g');
      for (const i of picked) bar(fig, area, ticks, d, i, shown.indexOf(d.session[i]));
      fig.svg.append(ticks);
      const left = data.lanes.left_out ? ` ${data.lanes.left_out.toLocaleString('en')} later requests are not on this page.` : '';
      fig.note(`One lane a session, first repeat; the hand-off is the tick between relay and main decode.${left}`);
    },
    csv() {
      const out = [['arm', 'request_id', 'session_id', 'outcome', 'pipeline', 'due_s', 'first_token_s', 'handoff_s', 'end_s', 'kv_wan_s']];
      for (const a of names) { const d = data.lanes.arms[a]; d.id.forEach((id, i) => out.push([a, id, d.session[i], d.outcome[i], d.pipeline[i], d.due[i], d.first[i], d.seam[i], d.end[i], d.kv[i]])); }
      return out;
    },
  });

  function bar(fig, area, ticks, d, i, lane) {
    const y = area.y(lane), {due, first, seam, end} = Object.fromEntries(['due', 'first', 'seam', 'end'].map(k => [k, d[k][i]]));
    const box = (from, to, kind) => {
      if (from === null || to === null || !fig.on(kind)) return;
      fig.svg.append(draw('rect', {x: area.x(from), y: y - 7, height: 14, width: Math.max(1, area.x(to) - area.x(from)), rx: 2, class: 'bar k-' + kind}));
    };
    const ok = d.outcome[i] === 'ok', relay = d.pipeline[i] === 'P-RLD';
    box(due, first ?? end, first === null ? 'lost' : 'wait');
    if (seam !== null) { box(first, seam, 'rld'); box(seam, end, 'flow'); } else box(first, end, !ok ? 'lost' : relay ? 'rld' : 'flow');
    if (seam !== null && fig.on('rld')) ticks.append(draw('line', {x1: area.x(seam), x2: area.x(seam), y1: y - 9, y2: y + 9, class: 'seam'}));
    const lines = [`${d.id[i]} · ${d.pipeline[i] || d.outcome[i]}`];
    if (!ok) lines.push(d.outcome[i]);
    if (first !== null) lines.push(`first token after ${seconds(first - due)}`);
    if (seam !== null) lines.push(`hand-off ${seconds(seam - first)} later`);
    if (d.kv[i] !== null) lines.push(`KV over the WAN ${seconds(d.kv[i])}`);
    if (end !== null) lines.push(`done after ${seconds(end - due)}`);
    for (const t of [due, first, seam, end]) if (t !== null) fig.hit(area.x(t), y, ...lines);
    if (end !== null) fig.hit(area.x((due + end) / 2), y, ...lines);
  }
}

function gaps(data) {
  const g = data.gaps;
  new Figure('gaps', {
    title: 'Gaps over tokens',
    series: armSeries(data),
    choices: [{name: 'view', label: 'view', values: [['token', 'by token'], ['handoff', 'around the hand-off']]},
      {name: 'stat', label: 'quantile', values: [['p99', 'P99'], ['p90', 'P90'], ['p50', 'P50']]}],
    draw(fig) {
      const view = g[fig.chosen.view], arms = data.arms.filter(a => fig.on(a) && view[a].at.length);
      const stat = fig.chosen.stat;
      const values = arms.flatMap(a => view[a][stat]).filter(v => v > 0);
      if (!values.length) return fig.empty(fig.chosen.view === 'handoff' ? 'no hand-off seen often enough for this quantile' : 'too few gaps for this quantile');
      const [x0, x1] = extent(arms.flatMap(a => view[a].at)), [low, high] = extent(values);
      const label = fig.chosen.view === 'token' ? 'token' : 'gaps from the hand-off';
      const area = fig.axes(linear(x0, x1, plain, fig.width < 500 ? 4 : 7), logarithmic(low / 1.3, high * 1.3), {xLabel: label, yLabel: stat.toUpperCase() + ' of the gap'});
      if (fig.chosen.view === 'handoff') fig.svg.append(draw('line', {x1: area.x(0), x2: area.x(0), y1: area.top, y2: area.bottom, class: 'zero'}));
      if (data.slo.max_gap_ms) fig.level(area.y(data.slo.max_gap_ms / 1e3), area, `SLO ${seconds(data.slo.max_gap_ms / 1e3)}`);
      for (const a of arms) {
        const v = view[a];
        fig.path(v.at.map((t, i) => v[stat][i] === null ? null : [area.x(t), area.y(v[stat][i])]), style(data, a));
        v.at.forEach((t, i) => v[stat][i] !== null && fig.hit(area.x(t), area.y(v[stat][i]), a, `${label} ${t}: ${seconds(v[stat][i])}`, `${v.n[i]} gaps`));
      }
      if (fig.chosen.view === 'token' && g.width > 1) fig.note(`${g.width} tokens a point`);
    },
    csv() {
      const out = [['view', 'arm', 'at', 'gaps', 'p50_seconds', 'p90_seconds', 'p99_seconds']];
      for (const view of ['token', 'handoff']) for (const a of data.arms) { const v = g[view][a]; v.at.forEach((t, i) => out.push([view, a, t, v.n[i], v.p50[i], v.p90[i], v.p99[i]])); }
      return out;
    },
  });
}

function timeline(data) {
  const t = data.timeline;
  const repeats = [...new Set(t.parts.map(p => p.repeat))];
  const panels = [['ttft_p50', 'TTFT from due, median', seconds], ['in_flight', 'in flight', plain], ['rate', 'starts a second', plain],
    ['kv_gbit', 'KV for the link, Gbit/s, by when its request was due', plain], ['failed', 'failed', plain], ['loop_lag', 'our loop’s lag, largest', seconds], ['cpu', 'our CPU, of a core', percent]];
  const useful = panels.filter(([key]) => t.parts.some(p => p[key].some(v => v !== null && (v > 0 || !['failed', 'kv_gbit'].includes(key)))));
  const times = (p, key) => key === 'loop_lag' || key === 'cpu' ? p.health_time : t.time;
  new Figure('timeline', {
    title: 'The run over time',
    series: armSeries(data),
    choices: [{name: 'repeat', label: 'repeat', values: repeats.map(r => [String(r), `repeat ${r}`])}],
    height: () => useful.length * 112 + EDGE.bottom,
    draw(fig) {
      const parts = t.parts.filter(p => String(p.repeat) === fig.chosen.repeat && fig.on(p.arm));
      if (!parts.length) return fig.empty('nothing to show');
      const [, end] = extent(parts.flatMap(p => [...p.health_time, t.time.at(-1) + t.step]));
      const xs = linear(0, end, v => plain(v) + ' s', fig.width < 500 ? 4 : 9);
      useful.forEach(([key, label, show], row) => {
        const [, high] = extent(parts.flatMap(p => p[key]).concat(0));
        const area = fig.axes(xs, linear(0, high || 1, show, 3), {top: row * 112 + 26, bottom: row * 112 + 100, yLabel: label,
          xLabel: 'experiment time since the start of each arm', last: row === useful.length - 1});
        if (key === 'kv_gbit' && t.link_gbit && t.link_gbit <= high) fig.level(area.y(t.link_gbit), area, `link ${plain(t.link_gbit)} Gbit/s`);
        for (const p of parts) for (const [from, until, what] of p.link_changes) {
          if (from >= end) continue;
          const left = area.x(from), right = area.x(Math.min(until ?? end, end));
          fig.svg.append(draw('rect', {x: left, y: area.top, width: Math.max(1, right - left), height: area.bottom - area.top, class: 'link-change'}));
          fig.hit((left + right) / 2, area.top, p.arm, `the link is ${what}`, `from ${plain(from)} s` + (until === null ? '' : ` to ${plain(until)} s`));
        }
        for (const p of parts) {
          const at = times(p, key), half = at === t.time ? t.step / 2 : 0;
          fig.path(p[key].map((v, i) => v === null ? null : [area.x(at[i] + half), area.y(v)]), style(data, p.arm));
          p[key].forEach((v, i) => v !== null && fig.hit(area.x(at[i] + half), area.y(v), p.arm, `${label}: ${show(v)}`, `at ${plain(at[i])} s`));
        }
      });
      const link = t.link_gbit && useful.some(([key]) => key === 'kv_gbit') ? ` The link carries ${plain(t.link_gbit)} Gbit/s.` : '';
      const changed = parts.some(p => p.link_changes.length) ? ' Shaded: the link was cut or had less than its rate, by its schedule.' : '';
      fig.note(`${plain(t.step)} s a point.${link}${changed} The arms ran one after the other; here they lie on top of each other.`);
    },
    csv() {
      const out = [['arm', 'repeat', 'what', 'time_s', 'value']];
      for (const p of t.parts) for (const [key] of panels) p[key].forEach((v, i) => v !== null && out.push([p.arm, p.repeat, key, times(p, key)[i], v]));
      return out;
    },
  });
}
