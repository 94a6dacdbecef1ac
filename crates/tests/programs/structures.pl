# perl: large hashes, arrays of arrays, strings, sorting. Argument: scale (1.0 is about 200 MiB).
use strict;
use warnings;
use Digest::SHA;

my $count = int(80_000 * $ARGV[0]);
my $state = 12345;
sub random { return $state = ($state * 1103515245 + 12345) & 0x7fffffff }

my (%table, @rows);
for my $i (1 .. $count) {
    my $key = sprintf("%08x-%d", random(), $i);
    $table{$key} = [$i, "value $i " x (10 + $i % 20), { id => $i, name => reverse $key }];
    push @rows, $table{$key} if $i % 2;
}
my $sha = Digest::SHA->new(256);
for my $key (sort keys %table) {
    my $row = $table{$key};
    $sha->add($key, $row->[0], $row->[1], $row->[2]{name});
}
@rows = sort { $a->[2]{name} cmp $b->[2]{name} || $a->[0] <=> $b->[0] } @rows;
my $text = join "\n", map { "$_->[0] $_->[1]" } @rows;
$text =~ s/value (\d)/VALUE<$1>/g;
$sha->add($text);
delete @table{grep { $table{$_}[0] % 3 == 0 } keys %table};
print scalar(keys %table), " ", length($text), " ", $sha->hexdigest, "\n";
