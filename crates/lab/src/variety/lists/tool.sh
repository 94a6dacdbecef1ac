# Tools of every day.

#: jq jq
#: needs jq
awk 'BEGIN { print "["; for (i = 0; i < 90000; i++)
    printf "{\"n\": %d, \"s\": \"text %d\", \"l\": [%d, %d]},\n", i, i, i % 7, i * 31 % 1009; print "{}]" }' >d.json
#: run
jq -c 'map(select(.n != null)) | [length, (map(.l[1]) | add), (group_by(.l[0]) | map(length))]' d.json

#: tar-sort tar coreutils
#: needs tar sort
mkdir -p a
for i in 1 2 3 4 5 6; do lines 100000 | tr 0-9 "$i-9x0-9" >a/$i; done
#: run
tar -c --sort=name --mtime=@0 --owner=0 --group=0 -f - a | sort -S 200M --parallel=1 -z | sha256sum
sort -S 400M --parallel=2 -k 2 a/1 a/2 a/3 a/4 a/5 a/6 | sha256sum

#: diff diffutils
#: needs diff
lines 300000 >a
awk 'NR % 97 { print } NR % 89 == 0 { print NR }' a >b
#: run
diff a b | sha256sum

#: pandoc pandoc
#: needs pandoc
for i in $(seq 1200); do printf '## Head %d\n\nText *with* `code` and [a link](http://x/%d).\n\n- a\n- b\n\n' $i $i; done >t.md
#: run
pandoc -f markdown -t html t.md | sha256sum

#: sqlite-window sqlite3
#: needs sqlite3
#: run
sqlite3 :memory: "pragma temp_store = 2; pragma cache_size = -200000;
create table a as with recursive c(i) as (select 1 union all select i + 1 from c where i < 700000)
    select i, i * 7919 % 700001 k, 'text ' || i s from c;
create index x on a(k, s);
select sum(r * k % 1009) from (select row_number() over (order by k) r, k from a);"

#: miller miller
#: needs mlr
awk 'BEGIN { print "a,b,c"; for (i = 0; i < 150000; i++) print i "," i * 7919 % 1009 ",text" i }' >d.csv
#: run
mlr --icsv --ojson --records-per-batch 500 sort -nr a then stats1 -a p50,mean,count -f a -g b then head -n 2 d.csv

#: datamash datamash
#: needs datamash
awk 'BEGIN { for (i = 0; i < 1200000; i++) print i % 13 "\t" i * 7919 % 100003 }' >d
#: run
datamash -s -g 1 median 2 iqr 2 mode 2 <d

#: csvkit csvkit
#: needs csvsort
awk 'BEGIN { print "a,b,c"; for (i = 0; i < 70000; i++) print i "," i * 7919 % 1009 ",text" i }' >d.csv
#: run
csvsort -I -c b,a d.csv | sha256sum

#: qemu-img qemu-utils
#: needs qemu-img
for i in 1 2 3 4; do lines 250000 | tr 0-9 "$i-9x0-9"; done >d
truncate -s 128M d
#: run
qemu-img convert -c -O qcow2 -o cluster_size=2M -m 16 d d.qcow2
qemu-img convert -O raw d.qcow2 back
sha256sum back

#: ripgrep ripgrep
#: needs rg
for i in 1 2 3; do lines 200000; done | tr '\n' ' ' >one-line
lines 200000 >text
#: run
rg --no-mmap -j2 -c 'word4.*text' text one-line | sort
rg --no-mmap -U -o -j1 'word77 text\s\w+' one-line | sha256sum

#: vim vim
#: needs vim
lines 250000 >text
#: run
vim -N -u NONE -i NONE -n -es -c '%s/word/WORD/' -c 'g/5$/d' -c '1,9000m$' -c 'undo' -c 'redo' \
    -c 'w! o' -c 'qa!' text || true
sha256sum o

#: emacs emacs-nox
#: needs emacs
lines 250000 >text
#: run
emacs -Q --batch --eval '(progn (setq large-file-warning-threshold nil) (find-file "text")
    (goto-char 1) (while (re-search-forward "word\\([0-9]+\\)" nil t) (replace-match "w\\1"))
    (sort-lines nil (point-min) (point-max)) (princ (md5 (current-buffer))) (terpri))'

#: curl curl
#: needs curl /usr/bin/python3
head -c 60000000 /dev/zero | tr '\0' x >big
#: run
/usr/bin/python3 -m http.server 38471 --bind 127.0.0.1 >/dev/null 2>&1 &
server=$!
await curl -s -o /dev/null -r 0-0 http://127.0.0.1:38471/big
/usr/bin/python3 -c '
import hashlib, urllib.request
b = urllib.request.urlopen("http://127.0.0.1:38471/big").read()
c = bytearray(b)
for i in range(0, len(c), 4096): c[i] = i % 251
print(hashlib.sha256(c).hexdigest(), hashlib.sha256(b).hexdigest())'
kill $server
