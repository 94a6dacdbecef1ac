# Servers, each with its own client: started, asked, and ended.

#: mariadb mariadb-server
#: needs mariadbd mariadb mariadb-install-db
chmod 777 .
mariadb-install-db --no-defaults --datadir="$PWD/d" --user="$(id -un)" --skip-test-db >/dev/null 2>&1
#: run
mariadbd --no-defaults --datadir="$PWD/d" --user="$(id -un)" --socket="$PWD/s" --skip-networking \
    --innodb-buffer-pool-size=64M --sort-buffer-size=64M --tmp-table-size=128M \
    --max-heap-table-size=128M --skip-log-bin >log 2>&1 &
server=$!
await test -S s
mariadb --no-defaults -N -S s -e '
DROP DATABASE IF EXISTS t; CREATE DATABASE t; USE t;
CREATE TABLE a (n INT, s VARCHAR(40)) ENGINE=InnoDB;
INSERT INTO a SELECT seq, CONCAT("text ", seq * 7919 % 150001) FROM seq_1_to_150000;
SELECT MD5(GROUP_CONCAT(n)) FROM (SELECT n FROM a ORDER BY s LIMIT 2000) x;
SELECT COUNT(*), SUM(c) FROM (SELECT s, COUNT(*) c FROM a GROUP BY s) x;'
kill $server
wait $server || true

#: postgres-index postgresql
#: needs /usr/lib/postgresql/15/bin/postgres runuser
b=/usr/lib/postgresql/15/bin
chown nobody .
chmod 755 .
runuser -u nobody -- $b/initdb -D d --no-locale -E UTF8 -A trust -U p >/dev/null
#: run
b=/usr/lib/postgresql/15/bin
runuser -u nobody -- $b/pg_ctl -s -D d -w -l log -o "-k $PWD -c listen_addresses= -c fsync=off \
    -c shared_buffers=16MB -c work_mem=200MB -c maintenance_work_mem=200MB \
    -c max_parallel_workers_per_gather=0 -c max_parallel_maintenance_workers=0" start
$b/psql -h "$PWD" -U p -d postgres -qAt <<'X' || true
create temp table a as select i, md5(i::text) s from generate_series(1, 700000) i;
create index on a (s);
select count(*), max(n) from (select left(s, 5) k, count(*) n from a group by k) x;
select md5(string_agg(s, '' order by s)) from a where i % 10 = 0;
X
runuser -u nobody -- $b/pg_ctl -s -D d -m fast -w stop

#: memcached memcached
#: needs memcached /usr/bin/python3
cat >c.py <<'X'
import socket
s = socket.socket(socket.AF_UNIX); s.connect("s"); f = s.makefile("rwb")
for i in range(60000):
    v = (b"%d " % i) * (i % 200 + 1)
    f.write(b"set k%d 0 0 %d noreply\r\n%s\r\n" % (i, len(v), v))
f.write(b"get k1\r\n"); f.flush()
t = 0
def answer():
    global t
    while (line := f.readline()) != b"END\r\n":
        data = f.read(int(line.split()[3]) + 2)
        t = (t * 31 + len(data) + data[0]) % 1000000007
answer()
for i in range(0, 60000, 3):
    f.write(b"get k%d\r\n" % (i * 7 % 60000)); f.flush(); answer()
print(t)
X
#: run
rm -f s
memcached -u "$(id -un)" -s s -m 400 -t 2 &
server=$!
await test -S s
/usr/bin/python3 c.py
kill $server
wait $server || true

#: redis-fork redis-server
#: needs redis-server redis-cli
#: run
rm -f s dump.rdb
redis-server --port 0 --unixsocket s --enable-debug-command yes --save '' --dir . --daemonize no >log &
await redis-cli -s s ping
redis-cli -s s debug populate 250000 key 100 >&2
redis-cli -s s bgsave >&2
for i in 1 2 3 4 5 6; do redis-cli -s s eval 'local t = 0
    for i = 1, 20000 do t = (t * 31 + #redis.call("get", "key:" .. i * 7 % 250000)) % 1000003 end
    return t' 0; done
await sh -c 'redis-cli -s s info persistence | grep -q rdb_bgsave_in_progress:0'
redis-cli -s s info persistence | grep -o 'rdb_last_bgsave_status:[a-z]*'
redis-cli -s s shutdown nosave
wait
stat -c %s dump.rdb

#: etcd etcd-server etcd-client
#: needs etcd etcdctl
#: run
rm -rf d
etcd --data-dir d --unsafe-no-fsync --log-level error --listen-client-urls http://127.0.0.1:23800 \
    --advertise-client-urls http://127.0.0.1:23800 --listen-peer-urls http://127.0.0.1:23801 \
    --initial-advertise-peer-urls http://127.0.0.1:23801 \
    --initial-cluster default=http://127.0.0.1:23801 >log 2>&1 &
server=$!
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://127.0.0.1:23800
await etcdctl endpoint health
for i in $(seq 25); do head -c 900000 /dev/zero | tr '\0' "$((i % 10))" | etcdctl put "k$i" >/dev/null; done
etcdctl get --prefix k --print-value-only | sha256sum
kill $server
wait $server || true

#: php-fpm php-fpm nginx apache2-utils
#: needs php-fpm8.2 nginx curl
cat >fpm.conf <<'X'
[global]
error_log = fpm.log
[www]
listen = fpm.sock
pm = static
pm.max_children = 3
php_admin_value[memory_limit] = 1G
X
cat >nginx.conf <<'X'
pid nginx.pid;
error_log nginx.log;
worker_processes 2;
events {}
http {
    access_log off;
    server {
        listen unix:nginx.sock;
        location / {
            fastcgi_pass unix:fpm.sock;
            fastcgi_param SCRIPT_FILENAME $document_root/p.php;
            fastcgi_param REQUEST_METHOD GET;
            fastcgi_param QUERY_STRING $query_string;
            root .;
        }
    }
}
X
cat >p.php <<'X'
<?php
parse_str($_SERVER["QUERY_STRING"], $q);
$a = [];
for ($i = 0; $i < 120000; $i++) $a["k$i"] = ["n" => $i, "s" => "x$i"];
$s = (int) $q["s"];
foreach ($a as $k => $v) $s = ($s * 31 + $v["n"] + strlen($v["s"])) % 1000000007;
echo $s, "\n";
X
#: run
rm -f fpm.sock nginx.sock
sed "s,root [^;]*;,root $PWD;,; s,unix:fpm,unix:$PWD/fpm,; s,unix:nginx,unix:$PWD/nginx," nginx.conf >n.conf
php-fpm8.2 -R -F -y fpm.conf -p "$PWD" -d user=root >log 2>&1 &
servers=$!
nginx -p "$PWD" -c n.conf -g 'daemon off; user root;' >log2 2>&1 &
servers="$servers $!"
await test -S nginx.sock
await test -S fpm.sock
for i in 1 2 3 4 5 6; do curl -s --unix-socket nginx.sock "http://x/?s=$i" >$i.txt & c="$c $!"; done
wait $c
cat 1.txt 2.txt 3.txt 4.txt 5.txt 6.txt
kill $servers
wait

#: rabbitmq rabbitmq-server
#: needs erl /usr/lib/rabbitmq/bin/rabbitmq-server
#: run
export RABBITMQ_MNESIA_BASE=$PWD/m RABBITMQ_LOG_BASE=$PWD/l RABBITMQ_NODENAME=v@localhost
export RABBITMQ_NODE_PORT=25679 RABBITMQ_DIST_PORT=25680 RABBITMQ_ENABLED_PLUGINS_FILE=$PWD/e
export RABBITMQ_PID_FILE=$PWD/pid ERL_EPMD_PORT=4399 RABBITMQ_CONF_ENV_FILE=/dev/null
rm -rf m l pid
mkdir m l
echo '[].' >e
/usr/lib/rabbitmq/bin/rabbitmq-server >log 2>&1 &
await test -s pid
/usr/lib/rabbitmq/bin/rabbitmqctl -q -n v@localhost eval 'rabbit:await_startup(),
    L = [{I, integer_to_list(I)} || I <- lists:seq(1, 150000)],
    lists:sum([length(T) || {_, T} <- L]).'
/usr/lib/rabbitmq/bin/rabbitmqctl -q -n v@localhost shutdown >&2 || true
wait
