# Stand-alone: run `gnuplot` on this file from any directory; it reads the .dat file beside it and writes
# a .png and a .pdf beside it.
prefix = ''
do for [i=1:strlen(ARG0)] { if (ARG0[i:i] eq '/') { prefix = ARG0[1:i] } }
png = strstrt(GPVAL_TERMINALS, ' pngcairo ') ? 'pngcairo' : strstrt(GPVAL_TERMINALS, ' png ') ? 'png' : ''
pdf = strstrt(GPVAL_TERMINALS, ' pdfcairo ') ? 'pdfcairo' : ''
if (png eq '') { print 'this gnuplot has no PNG terminal: install gnuplot-nox' }
if (pdf eq '') { print 'this gnuplot has no PDF terminal: install gnuplot-nox' }
if (png eq '' && pdf eq '') { exit status 3 }
set encoding utf8
set border 3 linewidth 0.6 linecolor rgb '#404040'
set tics nomirror out scale 0.6,0.3 font ',7' textcolor rgb '#202020'
set grid xtics ytics linetype 1 linewidth 0.4 linecolor rgb '#e4e4e4'
set format '%g'
set bars 0.5
set boxwidth 0.8 relative
set style fill solid 0.55 noborder
set label 99 'Memory' noenhanced at screen 0.5, screen 0.965 center
set xlabel 'tokens T' noenhanced offset 0,0.5 font ',7.5'
set ylabel 'bytes' noenhanced offset 1.2,0 font ',7.5'
set bmargin 3.95
set label 100 'cuda bf16, B 4, H 1, dk 64, dv 64, graph, cache hot, NVIDIA H200, 132 multiprocessors' at screen 0.5, screen 0.025 center noenhanced font ',5' textcolor rgb '#606060'
set key at screen 0.53, screen 0.935 center top horizontal Left reverse samplen 2.4 spacing 0.9 width -2 maxcols 2 noenhanced font ',6.5'
set tmargin 4.15
set logscale x 2
set xtics ('64' 64.0, '256' 256.0, '1k' 1024.0, '4k' 4096.0, '16k' 16384.0, '64k' 65536.0)
set logscale y
set format y '10^{%L}'
set mytics 10
set xrange [51.98415336679907:80684.28027297244]
set yrange [20853.936972185762:609654520.8359014]
if (png ne '') {
if (png eq 'pngcairo') { set terminal pngcairo size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3.6 pointscale 3.6 enhanced } else { set terminal png size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3 enhanced }
set output prefix.'memory.png'
plot prefix.'memory.dat' index 0 using 1:2 with linespoints dashtype 1 linewidth 1.2 pointtype 7 pointsize 0.4 linecolor rgb '#D55E00' title 'softmax state', \
     prefix.'memory.dat' index 1 using 1:2 with linespoints dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#009E73' title 'linear state', \
     prefix.'memory.dat' index 2 using 1:2 with linespoints dashtype (3,2) linewidth 1.2 pointtype 9 pointsize 0.4 linecolor rgb '#0072B2' title 'vla state', \
     prefix.'memory.dat' index 3 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#D55E00' title 'softmax all buffers', \
     prefix.'memory.dat' index 4 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#009E73' title 'linear all buffers', \
     prefix.'memory.dat' index 5 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#0072B2' title 'vla all buffers'
unset output
}
if (pdf ne '') {
set terminal pdfcairo size 5in,3.86in font 'sans,8' fontscale 1 linewidth 1 pointscale 1 enhanced
set output prefix.'memory.pdf'
plot prefix.'memory.dat' index 0 using 1:2 with linespoints dashtype 1 linewidth 1.2 pointtype 7 pointsize 0.4 linecolor rgb '#D55E00' title 'softmax state', \
     prefix.'memory.dat' index 1 using 1:2 with linespoints dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#009E73' title 'linear state', \
     prefix.'memory.dat' index 2 using 1:2 with linespoints dashtype (3,2) linewidth 1.2 pointtype 9 pointsize 0.4 linecolor rgb '#0072B2' title 'vla state', \
     prefix.'memory.dat' index 3 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#D55E00' title 'softmax all buffers', \
     prefix.'memory.dat' index 4 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#009E73' title 'linear all buffers', \
     prefix.'memory.dat' index 5 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#0072B2' title 'vla all buffers'
unset output
}
