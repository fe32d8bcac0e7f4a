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
set label 99 'Gradient of the last answer, mqar, 73 tokens' noenhanced at screen 0.5, screen 0.965 center
set xlabel 'lag (tokens)' noenhanced offset 0,0.5 font ',7.5'
set ylabel '|dL/dx|' noenhanced offset 1.2,0 font ',7.5'
set key at screen 0.53, screen 0.935 center top horizontal Left reverse samplen 2.4 spacing 0.9 width -2 maxcols 2 noenhanced font ',6.5'
set tmargin 6.7
set logscale x 2
set xtics ('1' 1.0, '2' 2.0, '4' 4.0, '8' 8.0, '16' 16.0, '32' 32.0, '64' 64.0)
set logscale y
set format y '10^{%L}'
set mytics 10
set xrange [0.8695652173913044:82.8]
set yrange [5.797734253184503e-21:64.92032561252562]
if (png ne '') {
if (png eq 'pngcairo') { set terminal pngcairo size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3.6 pointscale 3.6 enhanced } else { set terminal png size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3 enhanced }
set output prefix.'gradient_mqar_paper_T73.png'
plot prefix.'gradient_mqar_paper_T73.dat' index 0 using 1:2 with lines dashtype 1 linewidth 1.3 linecolor rgb '#CC79A7' title 'delta, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 1 using 1:2 with linespoints dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#CC79A7' title 'delta, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 2 using 1:2 with lines dashtype (3,2) linewidth 1.3 linecolor rgb '#009E73' title 'linear, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 3 using 1:2 with linespoints dashtype (9,3,2,3) linewidth 1.2 pointtype 11 pointsize 0.4 linecolor rgb '#009E73' title 'linear, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 4 using 1:2 with lines dashtype (6,2,2,2,2,2) linewidth 1.3 linecolor rgb '#E69F00' title 'decay, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 5 using 1:2 with linespoints dashtype 1 linewidth 1.2 pointtype 6 pointsize 0.4 linecolor rgb '#E69F00' title 'decay, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 6 using 1:2 with lines dashtype (9,3) linewidth 1.3 linecolor rgb '#D55E00' title 'softmax, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 7 using 1:2 with linespoints dashtype (3,2) linewidth 1.2 pointtype 8 pointsize 0.4 linecolor rgb '#D55E00' title 'softmax, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 8 using 1:2 with lines dashtype (9,3,2,3) linewidth 1.3 linecolor rgb '#0072B2' title 'vla, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 9 using 1:2 with linespoints dashtype (6,2,2,2,2,2) linewidth 1.2 pointtype 12 pointsize 0.4 linecolor rgb '#0072B2' title 'vla, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 10 using 1:2 with lines dashtype 1 linewidth 1.3 linecolor rgb '#56B4E9' title 'rls, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 11 using 1:2 with linespoints dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#56B4E9' title 'rls, trained'
unset output
}
if (pdf ne '') {
set terminal pdfcairo size 5in,3.86in font 'sans,8' fontscale 1 linewidth 1 pointscale 1 enhanced
set output prefix.'gradient_mqar_paper_T73.pdf'
plot prefix.'gradient_mqar_paper_T73.dat' index 0 using 1:2 with lines dashtype 1 linewidth 1.3 linecolor rgb '#CC79A7' title 'delta, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 1 using 1:2 with linespoints dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#CC79A7' title 'delta, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 2 using 1:2 with lines dashtype (3,2) linewidth 1.3 linecolor rgb '#009E73' title 'linear, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 3 using 1:2 with linespoints dashtype (9,3,2,3) linewidth 1.2 pointtype 11 pointsize 0.4 linecolor rgb '#009E73' title 'linear, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 4 using 1:2 with lines dashtype (6,2,2,2,2,2) linewidth 1.3 linecolor rgb '#E69F00' title 'decay, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 5 using 1:2 with linespoints dashtype 1 linewidth 1.2 pointtype 6 pointsize 0.4 linecolor rgb '#E69F00' title 'decay, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 6 using 1:2 with lines dashtype (9,3) linewidth 1.3 linecolor rgb '#D55E00' title 'softmax, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 7 using 1:2 with linespoints dashtype (3,2) linewidth 1.2 pointtype 8 pointsize 0.4 linecolor rgb '#D55E00' title 'softmax, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 8 using 1:2 with lines dashtype (9,3,2,3) linewidth 1.3 linecolor rgb '#0072B2' title 'vla, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 9 using 1:2 with linespoints dashtype (6,2,2,2,2,2) linewidth 1.2 pointtype 12 pointsize 0.4 linecolor rgb '#0072B2' title 'vla, trained', \
     prefix.'gradient_mqar_paper_T73.dat' index 10 using 1:2 with lines dashtype 1 linewidth 1.3 linecolor rgb '#56B4E9' title 'rls, untrained', \
     prefix.'gradient_mqar_paper_T73.dat' index 11 using 1:2 with linespoints dashtype (9,3) linewidth 1.2 pointtype 5 pointsize 0.4 linecolor rgb '#56B4E9' title 'rls, trained'
unset output
}
