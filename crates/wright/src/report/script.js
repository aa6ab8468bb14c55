(function(){
  var d=document,root=d.documentElement,tip=d.getElementById('tip');
  d.addEventListener('mousemove',function(e){
    var t=e.target.closest&&e.target.closest('[data-tip]');
    if(!t){tip.className='';return;}
    tip.textContent=t.getAttribute('data-tip');tip.className='on';
    var x=e.clientX+14,y=e.clientY+16;
    if(x+tip.offsetWidth>innerWidth-8)x=e.clientX-tip.offsetWidth-12;
    if(y+tip.offsetHeight>innerHeight-8)y=e.clientY-tip.offsetHeight-12;
    tip.style.left=Math.max(4,x)+'px';tip.style.top=Math.max(4,y)+'px';
  });
  d.getElementById('theme').onclick=function(){
    var dark=root.dataset.theme?root.dataset.theme==='dark':matchMedia('(prefers-color-scheme:dark)').matches;
    root.dataset.theme=dark?'light':'dark';
  };
  d.querySelectorAll('[data-tabs]').forEach(function(box){
    var buttons=box.querySelectorAll('button[data-tab]');
    buttons.forEach(function(b){b.onclick=function(){
      buttons.forEach(function(o){o.setAttribute('aria-selected',o===b);});
      box.querySelectorAll('[data-pane]').forEach(function(p){p.hidden=p.dataset.pane!==b.dataset.tab;});
    };});
  });
  var search=d.getElementById('filter');
  if(search)search.oninput=function(){
    var q=search.value.toLowerCase();
    d.querySelectorAll('#candidates tbody tr').forEach(function(r){r.hidden=r.textContent.toLowerCase().indexOf(q)<0;});
  };
})();
