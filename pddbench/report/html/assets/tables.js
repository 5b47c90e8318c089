// Tables that sort and whose sections fold.
function sortable(table) {
  const bodies = [...table.tBodies].map(body => [body, [...body.rows]]);
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.dataset.sort) return;
    const button = make('button', {type: 'button'});
    button.append(...head.childNodes);
    if (!button.textContent) button.append(make('span', {class: 'unit'}, 'as measured'));
    head.append(button);
    button.addEventListener('click', () => {
      const order = head.getAttribute('aria-sort') === 'descending' ? 'ascending' : 'descending';
      heads.forEach(h => h.removeAttribute('aria-sort'));
      if (head.dataset.sort !== 'order') head.setAttribute('aria-sort', order);
      for (const [body, rows] of bodies) body.append(...(head.dataset.sort === 'order' ? rows : arranged(rows, column, order)));
    });
  });
}

// Section headings stay on top; rows without a value go to the end, whichever way it is sorted.
function arranged(rows, column, order) {
  const key = row => row.classList.contains('section') ? NaN : Number(row.cells[column]?.dataset.value ?? NaN);
  const heads = rows.filter(row => row.classList.contains('section'));
  const known = rows.filter(row => !heads.includes(row) && Number.isFinite(key(row)));
  const rest = rows.filter(row => !heads.includes(row) && !known.includes(row));
  known.sort((a, b) => order === 'descending' ? key(b) - key(a) : key(a) - key(b));
  return [...heads, ...known, ...rest];
}

// A section's heading folds it; on a phone all but the first two begin folded, so that the plots are near.
function foldable(table) {
  if (table.tBodies.length < 2) return;
  const narrow = document.documentElement.clientWidth < 600;
  [...table.tBodies].forEach((body, number) => {
    const head = body.rows[0].cells[0];
    const button = make('button', {type: 'button', class: 'fold'});
    button.append(...head.childNodes);
    head.append(button);
    const show = open => {
      button.setAttribute('aria-expanded', String(open));
      for (const row of body.rows) if (!row.classList.contains('section')) row.hidden = !open;
    };
    button.addEventListener('click', () => show(button.getAttribute('aria-expanded') !== 'true'));
    show(!narrow || number < 2);
  });
}

document.querySelectorAll('table.sortable').forEach(table => { sortable(table); foldable(table); });
// paper cannot be unfolded; the configuration is not printed
addEventListener('beforeprint', () => document.querySelectorAll('details:not(#configuration *)').forEach(d => { d.open = true; }));
