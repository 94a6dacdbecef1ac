"""uzswap.Cache: what is put is got, from memory and store, by threads, in children, until it is
dropped; and what cannot be done says why."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import uzswap
from uzswap._cache import _bytes

AREAS, PAGE = 31, 4096


def page(number):
    """Half of it compresses."""
    rng = random.Random(number)
    return rng.randbytes(PAGE // 2) + number.to_bytes(8, "little") * (PAGE // 16)


def in_child(work):
    """What a forked child says of `work`: whether it raised nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as why:
            print(f"child: {why!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class SizeTest(unittest.TestCase):
    def test_sizes_are_those_of_the_command(self):
        for size, number in [
            (0, 0),
            (2**64 - 1, 2**64 - 1),
            ("4096", 4096),
            ("17b", 17),
            ("1k", 1024),
            ("64M", 64 << 20),
            ("64 MiB", 64 << 20),
            ("64MB", 64_000_000),
            ("1kB", 1000),
            (" 1.5 gib ", 3 << 29),
            (".5G", 1 << 29),
            ("2.T", 2 << 40),
            ("1P", 1 << 50),
            ("0.001kb", 1),
            ("9007199254740993", 2**53 + 1),
            ("18446744073709551615", 2**64 - 1),
        ]:
            self.assertEqual(_bytes(size), number, size)

    def test_what_is_no_size_is_refused(self):
        for size in ["", " ", ".", "M", "ib", "4ib", "-1", "+1", "1e9", "1.2.3", "50%", "\u0661G"]:
            with self.assertRaisesRegex(ValueError, "is no size: give bytes"):
                _bytes(size)
        # Their lowest bits would be 1 GiB.
        for size in [-1, 2**64, 2**64 + (1 << 30), "18446744073709551616", "17179869185G"]:
            with self.assertRaisesRegex(ValueError, "is no size: it must be from 0"):
                _bytes(size)
        with self.assertRaises(TypeError):
            _bytes(1.5)


class CacheTest(unittest.TestCase):
    def test_pages_come_back_until_they_are_dropped(self):
        with uzswap.Cache("16M") as cache:
            for number in range(300):
                cache[number] = page(number)
            self.assertEqual(len(cache), 300)
            self.assertTrue(all(cache[number] == page(number) for number in range(300)))
            cache[7] = page(1000)
            self.assertEqual(cache[7], page(1000))
            self.assertTrue(cache.drop(7))
            self.assertFalse(cache.drop(7))
            self.assertIsNone(cache.get(7))
            with self.assertRaises(KeyError):
                cache[7]
            del cache[8]
            with self.assertRaises(KeyError):
                del cache[8]
            cache.put(9, page(5), area=AREAS - 1)
            self.assertEqual((cache.get(9, area=AREAS - 1), cache.get(9)), (page(5), page(9)))
            self.assertEqual(cache.drop_area(0), 298)
            self.assertEqual(len(cache), 1)
            with self.assertRaises(TypeError):
                list(cache)

    def test_any_buffer_is_a_page_and_zeros_follow_a_short_one(self):
        with uzswap.Cache(1 << 20) as cache:
            for given in (page(1), bytearray(page(1)), memoryview(page(1))):
                cache.put(1, given)
                self.assertEqual(cache[1], page(1))
            cache[2] = b"short"
            self.assertEqual(cache[2], b"short" + bytes(PAGE - 5))
            with self.assertRaisesRegex(ValueError, "4096 bytes, not 4097"):
                cache[3] = bytes(PAGE + 1)

    def test_a_full_cache_raises_and_a_store_takes_more(self):
        with uzswap.Cache("1M") as cache:
            with self.assertRaisesRegex(uzswap.Full, "room"):
                for number in range(2000):
                    cache[number] = page(number)
            stored = len(cache)
            self.assertTrue(200 < stored < 1000, stored)
            self.assertTrue(all(cache[number] == page(number) for number in range(stored)))
            cache.set_memory("2 MiB")
            cache[stored] = page(stored)
            self.assertEqual(cache.stats().memory_bytes, 2 << 20)
        with tempfile.TemporaryDirectory() as directory:
            for encrypt in (True, False):
                with uzswap.Cache("1M", store=directory, encrypt=encrypt) as cache:
                    for number in range(2000):
                        cache[number] = page(number)
                    self.assertGreater(cache.stats().store_pages, 1000)
                    self.assertLess(cache.shrink(), 512 << 10)
                    stats = cache.stats()
                    self.assertEqual((stats.pages, stats.memory_pages), (2000, 0))
                    self.assertTrue(all(cache[n] == page(n) for n in range(2000)))
            place = pathlib.Path(directory)
            with uzswap.Cache("1M", store=place, compressor="zstd:level=1") as cache:
                cache[0] = page(0)
                self.assertEqual(cache[0], page(0))

    def test_what_cannot_be_says_why(self):
        with self.assertRaisesRegex(ValueError, "compressor: snappy"):
            uzswap.Cache("1M", compressor="snappy")
        with self.assertRaises(FileNotFoundError) as found:
            uzswap.Cache("1M", store="/no/such/directory")
        self.assertIn("/no/such/directory", str(found.exception))
        for size in ("much", "", "-1", -1, 1 << 64):
            with self.assertRaisesRegex(ValueError, "size"):
                uzswap.Cache(size)
        cache = uzswap.Cache("1M")
        for area, number in [(AREAS, 0), (0, (1 << 32) - 1), (-1, 0), (0, -1), (1 << 32, 0)]:
            with self.assertRaisesRegex(ValueError, "too large"):
                cache.put(number, b"", area=area)
            with self.assertRaisesRegex(ValueError, "too large"):
                cache.get(number, area=area)
        cache.close()
        cache.close()
        for call in (len, uzswap.Cache.stats, uzswap.Cache.shrink, lambda c: c.get(0)):
            with self.assertRaisesRegex(ValueError, "closed"):
                call(cache)

    def test_threads_share_a_cache_and_closing_it_frees_nothing_under_them(self):
        cache = uzswap.Cache("1M", store=tempfile.gettempdir())
        wrong, begun = [], threading.Barrier(5)

        def work(me):
            rng = random.Random(me)
            try:
                for count in range(100_000):
                    number = rng.randrange(50) * 4 + me
                    cache[number] = page(number)
                    if cache[number] != page(number):
                        wrong.append(number)
                    if count == 100:
                        begun.wait()
            except ValueError as why:
                if "closed" not in str(why):
                    wrong.append(why)

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        cache.close()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_children_have_all_pages_and_go_on_by_themselves(self):
        cache = uzswap.Cache("512K", store=tempfile.gettempdir())
        other = uzswap.Cache("1M")
        other[0] = page(3)
        for number in range(1000):
            cache[number] = page(number)

        def child():
            assert all(cache[number] == page(number) for number in range(1000))
            assert other[0] == page(3)
            for number in range(1000):
                cache[number] = page(number + 1)
            assert all(cache[number] == page(number + 1) for number in range(1000))
            assert in_child(lambda: cache[5] == page(6) or 1 / 0)

        self.assertTrue(in_child(child))
        self.assertTrue(all(cache[number] == page(number) for number in range(1000)))

    def test_without_the_library_it_says_where_it_looked(self):
        code = "import uzswap\ntry: uzswap.Cache('1M')\nexcept uzswap.Error as why: print(why)"
        environment = {**os.environ, "UZSWAP_LIBRARY": "/no/libuzswap.so.1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        self.assertIn("there is no libuzswap.so.1 (/no/libuzswap.so.1", done.stdout, done.stderr)

    def test_the_wheel_has_the_library(self):
        directory = pathlib.Path(uzswap.__file__).parent
        self.assertTrue((directory / "libuzswap.so.1").is_file(), directory)


if __name__ == "__main__":
    unittest.main()
