// Tables that sort, then the plots.
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

document.querySelectorAll('table.sortable').forEach(sortable);
const data = JSON.parse(document.getElementById('data').textContent);
for (const plot of [curves, buckets, hits, lanes, gaps, paired, timeline]) plot(data);
document.documentElement.dataset.ready = 'true';
