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
set label 99 'Time a token' noenhanced at screen 0.5, screen 0.965 center
set xlabel 'tokens T' noenhanced offset 0,0.5 font ',7.5'
set ylabel 'time a token, all heads (s)' noenhanced offset 1.2,0 font ',7.5'
set bmargin 4.7
set label 100 'cuda bf16, B 1, H 16, dk 64, dv 64, graph, cache hot, NVIDIA H200, 132 multiprocessors; medians with' at screen 0.5, screen 0.055 center noenhanced font ',5' textcolor rgb '#606060'
set label 101 'quartiles' at screen 0.5, screen 0.025 center noenhanced font ',5' textcolor rgb '#606060'
set key at screen 0.53, screen 0.935 center top horizontal Left reverse samplen 2.4 spacing 0.9 width -1 maxcols 3 noenhanced font ',6.5'
set tmargin 3.3
set logscale x 2
set xtics ('512' 512.0, '2k' 2048.0, '8k' 8192.0, '32k' 32768.0, '128k' 131072.0)
set logscale y
set format y '10^{%L}'
set mytics 10
set xrange [433.53359992961396:154795.0701188914]
set yrange [1.8300044453333188e-09:6.865182246176876e-07]
set object 1 rectangle from first 3158.0, graph 0 to first 3298.0, graph 1 behind fillcolor rgb '#b0b0b0' fillstyle solid 0.35 noborder
set arrow from first 3158.0, graph 0 to first 3158.0, graph 1 nohead linewidth 0.7 dashtype 2 linecolor rgb '#606060'
set arrow from first 3298.0, graph 0 to first 3298.0, graph 1 nohead linewidth 0.7 dashtype 2 linecolor rgb '#606060'
set label 1 'vla = softmax at 3158-3298' at first 3298.0, graph 0.05 left noenhanced front font ',6.5' textcolor rgb '#404040' offset 0.5,0
set object 2 rectangle from first 1272.0, graph 0 to first 1328.0, graph 1 behind fillcolor rgb '#b0b0b0' fillstyle solid 0.35 noborder
set arrow from first 1272.0, graph 0 to first 1272.0, graph 1 nohead linewidth 0.7 dashtype 2 linecolor rgb '#606060'
set arrow from first 1328.0, graph 0 to first 1328.0, graph 1 nohead linewidth 0.7 dashtype 2 linecolor rgb '#606060'
set label 2 'delta = softmax at 1272-1328' at first 1328.0, graph 0.12 left noenhanced front font ',6.5' textcolor rgb '#404040' offset 0.5,0
if (png ne '') {
if (png eq 'pngcairo') { set terminal pngcairo size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3.6 pointscale 3.6 enhanced } else { set terminal png size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3 enhanced }
set output prefix.'token_time.png'
plot prefix.'token_time.dat' index 0 using 1:2:3:4 with yerrorlines dashtype 1 linewidth 1.2 pointtype 7 pointsize 0.4 linecolor rgb '#D55E00' title 'softmax', \
     prefix.'token_time.dat' index 1 using 1:2:3:4 with yerrorlines dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#009E73' title 'linear', \
     prefix.'token_time.dat' index 2 using 1:2:3:4 with yerrorlines dashtype (3,2) linewidth 1.2 pointtype 9 pointsize 0.4 linecolor rgb '#CC79A7' title 'delta', \
     prefix.'token_time.dat' index 3 using 1:2:3:4 with yerrorlines dashtype (9,3,2,3) linewidth 1.2 pointtype 11 pointsize 0.4 linecolor rgb '#E69F00' title 'decay', \
     prefix.'token_time.dat' index 4 using 1:2:3:4 with yerrorlines dashtype (6,2,2,2,2,2) linewidth 1.2 pointtype 13 pointsize 0.4 linecolor rgb '#0072B2' title 'vla', \
     prefix.'token_time.dat' index 5 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#707070' title 'memory floor'
unset output
}
if (pdf ne '') {
set terminal pdfcairo size 5in,3.86in font 'sans,8' fontscale 1 linewidth 1 pointscale 1 enhanced
set output prefix.'token_time.pdf'
plot prefix.'token_time.dat' index 0 using 1:2:3:4 with yerrorlines dashtype 1 linewidth 1.2 pointtype 7 pointsize 0.4 linecolor rgb '#D55E00' title 'softmax', \
     prefix.'token_time.dat' index 1 using 1:2:3:4 with yerrorlines dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#009E73' title 'linear', \
     prefix.'token_time.dat' index 2 using 1:2:3:4 with yerrorlines dashtype (3,2) linewidth 1.2 pointtype 9 pointsize 0.4 linecolor rgb '#CC79A7' title 'delta', \
     prefix.'token_time.dat' index 3 using 1:2:3:4 with yerrorlines dashtype (9,3,2,3) linewidth 1.2 pointtype 11 pointsize 0.4 linecolor rgb '#E69F00' title 'decay', \
     prefix.'token_time.dat' index 4 using 1:2:3:4 with yerrorlines dashtype (6,2,2,2,2,2) linewidth 1.2 pointtype 13 pointsize 0.4 linecolor rgb '#0072B2' title 'vla', \
     prefix.'token_time.dat' index 5 using 1:2 with lines dashtype (5,4) linewidth 1.0 linecolor rgb '#707070' title 'memory floor'
unset output
}
