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
set label 99 'Measured crossover' noenhanced at screen 0.5, screen 0.965 center
set xlabel 'heads B x H' noenhanced offset 0,0.5 font ',7.5'
set ylabel 'tokens T, bars: the bracket' noenhanced offset 1.2,0 font ',7.5'
set bmargin 3.95
set label 100 'cuda bf16, prefill, NVIDIA H200, 132 multiprocessors' at screen 0.5, screen 0.025 center noenhanced font ',5' textcolor rgb '#606060'
set key at screen 0.53, screen 0.935 center top horizontal Left reverse samplen 2.4 spacing 0.9 width 0 maxcols 1 noenhanced font ',6.5'
set tmargin 2.45
set logscale x 2
set xtics ('1' 1.0, '2' 2.0, '4' 4.0, '8' 8.0, '16' 16.0, '32' 32.0, '64' 64.0)
set logscale y
set ytics ('2000' 2000, '2500' 2500, '3000' 3000, '4000' 4000, '5000' 5000, '6000' 6000)
set xrange [0.8695652173913044:73.6]
set yrange [2518.2608695652175:5137.049999999999]
if (png ne '') {
if (png eq 'pngcairo') { set terminal pngcairo size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3.6 pointscale 3.6 enhanced } else { set terminal png size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3 enhanced }
set output prefix.'crossover_heads.png'
plot prefix.'crossover_heads.dat' index 0 using 1:2:3:4 with yerrorlines dashtype 1 linewidth 1.2 pointtype 7 pointsize 0.4 linecolor rgb '#0072B2' title 'vla and softmax, d = 64'
unset output
}
if (pdf ne '') {
set terminal pdfcairo size 5in,3.86in font 'sans,8' fontscale 1 linewidth 1 pointscale 1 enhanced
set output prefix.'crossover_heads.pdf'
plot prefix.'crossover_heads.dat' index 0 using 1:2:3:4 with yerrorlines dashtype 1 linewidth 1.2 pointtype 7 pointsize 0.4 linecolor rgb '#0072B2' title 'vla and softmax, d = 64'
unset output
}
