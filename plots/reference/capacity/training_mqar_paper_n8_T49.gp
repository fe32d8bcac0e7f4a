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
set label 99 'Training loss, mqar, 49 tokens, protocol paper' noenhanced at screen 0.5, screen 0.965 center
set xlabel 'step' noenhanced offset 0,0.5 font ',7.5'
set ylabel 'cross-entropy (nats)' noenhanced offset 1.2,0 font ',7.5'
set key at screen 0.53, screen 0.935 center top horizontal Left reverse samplen 2.4 spacing 0.9 width 0 maxcols 4 noenhanced font ',6.5'
set tmargin 2.45
set logscale y
set ytics ('0.1' 0.1, '0.2' 0.2, '0.5' 0.5, '1' 1, '2' 2, '5' 5)
set xrange [0.0:2049.4]
set yrange [0.0881388194068623:5.903443607499566]
if (png ne '') {
if (png eq 'pngcairo') { set terminal pngcairo size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3.6 pointscale 3.6 enhanced } else { set terminal png size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3 enhanced }
set output prefix.'training_mqar_paper_n8_T49.png'
plot prefix.'training_mqar_paper_n8_T49.dat' index 0 using 1:2 with lines dashtype 1 linewidth 1.3 linecolor rgb '#D55E00' title 'softmax', \
     prefix.'training_mqar_paper_n8_T49.dat' index 1 using 1:2 with lines dashtype (9,3) linewidth 1.3 linecolor rgb '#009E73' title 'linear', \
     prefix.'training_mqar_paper_n8_T49.dat' index 2 using 1:2 with lines dashtype (3,2) linewidth 1.3 linecolor rgb '#CC79A7' title 'delta', \
     prefix.'training_mqar_paper_n8_T49.dat' index 3 using 1:2 with lines dashtype (9,3,2,3) linewidth 1.3 linecolor rgb '#E69F00' title 'decay'
unset output
}
if (pdf ne '') {
set terminal pdfcairo size 5in,3.86in font 'sans,8' fontscale 1 linewidth 1 pointscale 1 enhanced
set output prefix.'training_mqar_paper_n8_T49.pdf'
plot prefix.'training_mqar_paper_n8_T49.dat' index 0 using 1:2 with lines dashtype 1 linewidth 1.3 linecolor rgb '#D55E00' title 'softmax', \
     prefix.'training_mqar_paper_n8_T49.dat' index 1 using 1:2 with lines dashtype (9,3) linewidth 1.3 linecolor rgb '#009E73' title 'linear', \
     prefix.'training_mqar_paper_n8_T49.dat' index 2 using 1:2 with lines dashtype (3,2) linewidth 1.3 linecolor rgb '#CC79A7' title 'delta', \
     prefix.'training_mqar_paper_n8_T49.dat' index 3 using 1:2 with lines dashtype (9,3,2,3) linewidth 1.3 linecolor rgb '#E69F00' title 'decay'
unset output
}
