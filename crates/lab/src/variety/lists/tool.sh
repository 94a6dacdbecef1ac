# Tools of every day.

#: jq jq
#: needs jq
awk 'BEGIN { print "["; for (i = 0; i < 90000; i++)
    printf "{\"n\": %d, \"s\": \"text %d\", \"l\": [%d, %d]},\n", i, i, i % 7, i * 31 % 1009; print "{}]" }' >d.json
#: run
jq -c 'map(select(.n != null)) | [length, (map(.l[1]) | add), (group_by(.l[0]) | map(length))]' d.json

#: rsync rsync
#: needs rsync
mkdir -p a
for i in $(seq 60); do mkdir -p a/$i; for j in $(seq 300); do : >a/$i/a-file-with-a-long-name-$j; done; done
lines 200000 >a/big
#: run
rm -rf b
rsync -a --no-i-r --checksum a/ b/
rsync -a --no-i-r --delete --stats a/ b/ | grep -e 'Number of files' -e 'regular files transferred'

#: tar-sort tar coreutils
#: needs tar sort
mkdir -p a
for i in 1 2 3 4; do lines 100000 | tr 0-9 "$i-9x0-9" >a/$i; done
#: run
tar -c --sort=name --mtime=@0 --owner=0 --group=0 -f - a | sort -S 200M --parallel=1 -z | sha256sum
sort -S 200M --parallel=2 -k 2 a/1 a/2 a/3 | sha256sum

#: diff diffutils
#: needs diff
lines 300000 >a
awk 'NR % 97 { print } NR % 89 == 0 { print NR }' a >b
#: run
diff a b | sha256sum

#: aspell aspell
#: needs aspell
aspell -d en dump master | awk 'NR % 2 { print $1 "x" }' | head -60000 >w
#: run
aspell --lang=en create master ./m.rws <w
aspell --master=./m.rws dump master | sort | sha256sum

#: pandoc pandoc
#: needs pandoc
for i in $(seq 1200); do printf '## Head %d\n\nText *with* `code` and [a link](http://x/%d).\n\n- a\n- b\n\n' $i $i; done >t.md
#: run
pandoc -f markdown -t html t.md | sha256sum

#: sqlite-window sqlite3
#: needs sqlite3
#: run
sqlite3 :memory: "pragma temp_store = 2; pragma cache_size = -200000;
create table a as with recursive c(i) as (select 1 union all select i + 1 from c where i < 250000)
    select i, i * 7919 % 250007 k, 'text ' || i s from c;
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
awk 'BEGIN { print "a,b,c"; for (i = 0; i < 15000; i++) print i "," i * 7919 % 1009 ",text" i }' >d.csv
#: run
csvsort -I -c b,a d.csv | sha256sum

#: bc bc
#: needs bc
#: run
echo 'for (i = 0; i < 3; i++) { x = 3 ^ 90000; y = 7 ^ 60000; }; x % 1000007; y % 1000007;
for (i = 0; i < 60000; i++) a[i] = i ^ 3; s = 0; for (i = 0; i < 60000; i++) s = (s * 31 + a[i]) % 1009; s' |
    bc -l

#: qemu-img qemu-utils
#: needs qemu-img
for i in 1 2 3 4; do lines 150000 | tr 0-9 "$i-9x0-9"; done >d
truncate -s 64M d
#: run
qemu-img convert -c -O qcow2 -o cluster_size=1M -m 8 d d.qcow2
qemu-img convert -O raw d.qcow2 back
sha256sum back

#: mke2fs e2fsprogs
#: needs mke2fs e2fsck
truncate -s 40G d
mke2fs -q -F -E lazy_itable_init=1,nodiscard,hash_seed=11111111-1111-1111-1111-111111111111 \
    -U 11111111-1111-1111-1111-111111111111 -N 9000000 d
#: run
e2fsck -f -n d 2>/dev/null | tail -1

#: xorriso genisoimage
#: needs genisoimage
mkdir -p a
for i in $(seq 60); do mkdir -p a/$i; for j in $(seq 200); do : >a/$i/a-file-$j; done; done
#: run
genisoimage -quiet -R -J -U -o o.iso a
isoinfo -R -f -i o.iso | sort | sha256sum

#: gpg gnupg
#: needs gpg
lines 300000 >text
#: run
mkdir -p -m 700 g
gpg --homedir g --batch --yes --passphrase x --pinentry-mode loopback -z 9 -c -o t.gpg text 2>/dev/null
gpg --homedir g --batch --yes --passphrase x --pinentry-mode loopback -d t.gpg 2>/dev/null | sha256sum

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
await curl -s -o /dev/null -r 0-0 http://127.0.0.1:38471/big
/usr/bin/python3 -c '
import hashlib, urllib.request
b = urllib.request.urlopen("http://127.0.0.1:38471/big").read()
c = bytearray(b)
for i in range(0, len(c), 4096): c[i] = i % 251
print(hashlib.sha256(c).hexdigest(), hashlib.sha256(b).hexdigest())'
kill %1
