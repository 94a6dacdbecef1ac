// java: maps, lists, strings, arrays and threads, hashed at the end.
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** java: maps, lists, strings, arrays and threads. Argument: scale (1.0 is about 200 MiB). */
public class Structures {
    record Row(int id, String name, long[] values) {}

    static int state = 12345;

    static int random() {
        return state = (state * 1103515245 + 12345) & 0x7fffffff;
    }

    static long[] values(int i) {
        long[] values = new long[320 + i % 200];
        for (int k = 0; k < values.length; k++) values[k] = (long) i * k + (random() & 15);
        return values;
    }

    static long spin(List<Row> rows, int from, int to) {
        long sum = 0;
        for (int i = from; i < to; i++)
            for (long v : rows.get(i).values()) sum = sum * 31 + v;
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        int count = (int) (37_500 * Double.parseDouble(arguments[0]));
        Map<String, Row> map = new HashMap<>();
        List<Row> rows = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String key = Integer.toHexString(random()) + "-" + i;
            Row row = new Row(i, new StringBuilder(key).reverse().toString(), values(i));
            map.put(key, row);
            rows.add(row);
        }
        rows.sort((a, b) -> a.name().compareTo(b.name()));
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (Row row : rows) digest.update(row.name().getBytes());

        long[] sums = new long[4];
        Thread[] threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            final int k = t;
            threads[t] = new Thread(() -> sums[k] = spin(rows, rows.size() * k / 4, rows.size() * (k + 1) / 4));
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();

        TreeMap<String, Integer> tree = new TreeMap<>();
        for (int round = 0; round < 3; round++) {
            tree.clear();
            for (int i = round; i < count; i += 4) tree.put(rows.get(i).name(), i);
        }
        digest.update((tree.firstKey() + tree.lastKey() + tree.size()).getBytes());
        StringBuilder hex = new StringBuilder();
        for (byte b : digest.digest()) hex.append(String.format("%02x", b));
        System.out.println(map.size() + " " + Arrays.toString(sums) + " " + hex);
    }
}
