# Pictures, sound, documents.

#: imagemagick imagemagick
#: needs convert
#: run
convert -limit memory 2GiB -limit map 2GiB -size 1900x1900 gradient:red-blue -swirl 90 -rotate 30 \
    -resize 60% -depth 8 rgb:- | sha256sum

#: graphviz graphviz
#: needs dot
awk 'BEGIN { print "digraph g {"; for (i = 0; i < 130; i++) for (j = 1; j < 3; j++)
    print "n" i " -> n" (i * j + 7 * j) % 130 ";"; print "}" }' >g.dot
#: run
dot -Tplain g.dot | sha256sum

#: sox sox
#: needs sox
#: run
sox -D -n -r 44100 -c 2 a.wav synth 25 sine 200-2000 sine 300
sox -D a.wav -r 48000 -t raw -e signed -b 16 - reverse rate -v 48000 norm -1 | sha256sum

#: rsvg librsvg2-bin
#: needs rsvg-convert
awk 'BEGIN { print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"4500\" height=\"4500\">"
    for (i = 0; i < 15000; i++) printf "<circle cx=\"%d\" cy=\"%d\" r=\"%d\" fill=\"#%06x\"/>\n",
        i * 7919 % 4500, i * 104729 % 4500, i % 9 + 1, i * 40503 % 16777216
    print "</svg>" }' >p.svg
#: run
rsvg-convert --unlimited p.svg | sha256sum

#: ghostscript ghostscript
#: needs gs
awk 'BEGIN { print "%!PS"; for (i = 0; i < 40000; i++) print i * 7919 % 600, i * 104729 % 800,
    "moveto", i % 50, i % 70, "rlineto stroke"; print "showpage" }' >p.ps
#: run
gs -q -dNOPAUSE -dBATCH -dSAFER -sDEVICE=ppmraw -r400 -dMaxBitmap=900000000 -sOutputFile=- p.ps |
    sha256sum

#: pdftoppm poppler-utils
#: needs pdftoppm gs
awk 'BEGIN { print "%!PS"; for (i = 0; i < 9000; i++) print i * 7919 % 600, i * 104729 % 800,
    "moveto", i % 50, i % 70, "rlineto stroke"; print "showpage" }' >p.ps
gs -q -dNOPAUSE -dBATCH -sDEVICE=pdfwrite -sOutputFile=p.pdf p.ps
#: run
pdftoppm -r 450 p.pdf | sha256sum

#: tesseract tesseract-ocr
#: needs tesseract convert
lines 25 | cut -c 1-40 >t
convert -size 3400x3000 xc:white -pointsize 60 -annotate +90+120 "@t" t.png 2>/dev/null ||
    convert -size 3400x3000 xc:white -pointsize 60 -annotate +90+120 "$(cat t)" t.png
#: run
OMP_THREAD_LIMIT=1 tesseract t.png - 2>/dev/null

#: ffmpeg-scale ffmpeg
#: needs ffmpeg
#: run
ffmpeg -v error -f lavfi -i testsrc2=size=1280x720:rate=25:duration=1 -vf \
    'reverse,scale=960:540,tile=5x5' -threads 1 -f rawvideo - | sha256sum
